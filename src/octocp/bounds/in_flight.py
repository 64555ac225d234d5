"""A bound from memory: how many microbatches a stage can have in flight, where every device holds one stage."""

from __future__ import annotations

from octocp.bounds.base import Bound, entry_delay, head, tail
from octocp.problem import B, F, Problem, W


def in_flight(problem: Problem) -> Bound:
    """Bound by the stage that must wait for its own backwards, over the partition that suits best.

    Proof. Let every device hold one stage, and let stage p hold the layers [b, e). A microbatch in flight there
    takes the stage's activation, so with the weights at most K fit at a time. Microbatches are alike and run in
    order (semantics, fact 1): F(i + K) waits for the end of B(i), which comes at least a round trip R after the
    start of F(i), the forwards from b to the last layer and the backwards down to b, with the transfers of
    P - 1 - p boundaries both ways. F(0) starts no earlier than head(b); with M - 1 = q K + r, F(r) starts r forwards
    of the stage later, F(r + q K) another q R later, and its B ends R after that. What is below b still follows.
    (Where R is zero, F and B of a microbatch may fall in one moment and hold nothing: memory then says nothing.)
    Hence

        value >= head(b) + r F + (q + 1) R + tail(b).

    Head, load and tail bound the stage as well. A plan has one partition, so the smallest value over all
    partitions of the largest over their stages is a bound: a dynamic programme over (stage, boundary). It
    takes the largest limit of any device for all. For the span: all of it lies in the window of stage 0's device.
    """
    nothing = Bound("in flight", 0, "needs a memory limit, one stage per device, and microbatches and devices alike")
    P, M = problem.n_devices, problem.n_microbatches
    if not (problem.uniform_microbatches and problem.uniform_devices and problem.has_memory_limit):
        return nothing
    if problem.max_stages != P or any(cap is None for cap in problem.capacity):
        return nothing
    capacity = max(cap for cap in problem.capacity if cap is not None)
    bounds = problem.fixed_bounds or (*(begin for begin, _ in problem.units), problem.n_layers)
    link = min((entry_delay(problem, boundary) for boundary in bounds[1:-1]), default=0)

    def least(stage: int, begin: int, end: int) -> int | None:
        """Return the least objective with these layers as that stage; None where not one microbatch fits."""
        static, activation, _ = problem.stage_memory(begin, end)
        forward, backward = problem.duration(F, begin, end), problem.duration(B, begin, end)
        before = head(problem, begin) + stage * link
        after = tail(problem, begin) + stage * link
        value = before + M * (forward + backward) + after
        if problem.objective == "makespan" and problem.split:
            value = max(value, before + M * (forward + backward + problem.duration(W, begin, end)))
        trip = sum(problem.least_ticks(kind, begin, problem.n_layers) for kind in (F, B))
        trip += 2 * (P - 1 - stage) * link
        if static > capacity:
            return None
        if activation and trip:
            most = (capacity - static) // activation
            if most < 1:
                return None
            again, rest = divmod(M - 1, most)
            value = max(value, before + rest * forward + (again + 1) * trip + after)
        return value

    reached: dict[int, int] = {0: 0}  # by boundary: the least possible so far
    for stage in range(P):
        following: dict[int, int] = {}
        ends = bounds[-1:] if stage == P - 1 else bounds[1:]
        for begin, so_far in reached.items():
            for end in ends:
                if end <= begin or (problem.fixed_bounds and end != bounds[stage + 1]):
                    continue
                value = least(stage, begin, end)
                if value is None:
                    break  # more layers fit even less
                if max(so_far, value) < following.get(end, max(so_far, value) + 1):
                    following[end] = max(so_far, value)
        reached = following
    value = reached.get(problem.n_layers, 0)
    return Bound("in flight", value, "memory limits the microbatches in flight, over the best partition")
