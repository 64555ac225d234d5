"""The edge: pydantic models of the file formats, and reading and writing them."""

from octocp.schema.instance import Cluster, Device, Instance, Link, LinkByNode, Stages, Training
from octocp.schema.model import KindCosts, ModelSpec, Profile, Provenance
from octocp.schema.plan import Plan, PlanOp, SolveInfo

__all__ = [
    "Cluster",
    "Device",
    "Instance",
    "KindCosts",
    "Link",
    "LinkByNode",
    "ModelSpec",
    "Plan",
    "PlanOp",
    "Profile",
    "Provenance",
    "SolveInfo",
    "Stages",
    "Training",
]
