"""Plans for runtimes: what is written, read back by other means; what is refused; what `check --runtime` finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from handmade import toy_plan
from octocp.errors import InputError
from octocp.report.export.runtime import RUNTIME_SUFFIXES, runtime_files
from octocp.schema.files import write_plan
from runtime_plans import VEE, megatron_plan, text_of
from terminal import octocp, refused

# ---- SimPipe ---------------------------------------------------------------------------------


def test_simpipe_yaml() -> None:
    plan = toy_plan(**{**VEE, "partition": (2, 1, 1, 2)})
    read = yaml.safe_load(text_of(plan, "simpipe"))
    assert read["partition_layers"] == [1, 1, 1, 1]
    assert read["placement"] == [[0, 3], [1, 2]]
    assert read["parallel"] == {"pp_size": 2, "micro_batch_num": 4, "bwd_split": True}
    assert read["tuning"] == {"auto_tune": False}
    with pytest.raises(InputError, match="partition: stage 0 holds no layer but the embedding"):
        runtime_files(toy_plan(**VEE), "simpipe", Path("x"))


# ---- the command line ------------------------------------------------------------------------


@pytest.fixture
def plan_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_plan(megatron_plan(2, 2, 2, split=False), "mine.plan.json")
    return Path("mine.plan.json")


def test_every_format_is_written_and_told_of(plan_file: Path) -> None:
    for form, suffix in RUNTIME_SUFFIXES.items():
        ran = octocp("export", plan_file, "--to", form)
        assert ran.code == 0, (form, ran)
        assert ran.out == ""
        assert "Written to mine" in ran.err
        if form == "chakra":
            assert Path("mine.0.et").exists()
            assert Path("mine.1.et").exists()
        else:
            assert Path(f"mine{suffix}").stat().st_size > 0
    assert Path("mine.torchtitan.csv").exists()
    for file in ("mine.torch.csv", "mine.torch-comms.csv", "mine.torchtitan.csv", "mine.megatron.txt"):
        ran = octocp("check", "--runtime", file)
        assert ran.code == 0, ran
        assert ran.out.startswith(f"{file}: OK, ")
    assert "--pipeline-model-parallel-layout" in octocp("export", plan_file, "--to", "megatron", "-o", "-").out
    assert "writes 2 files" in refused("export", plan_file, "--to", "chakra", "-o", "-")
    assert "--layout-only is for" in refused("export", plan_file, "--to", "svg", "--layout-only")


def test_what_cannot_run_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan(toy_plan(**VEE), "vee.plan.json")
    said = refused("export", "vee.plan.json", "--to", "megatron")
    assert said.startswith("octocp: vee.plan.json: placement: Megatron has stage 2 on rank 0")
    assert not Path("vee.megatron.txt").exists()
    broken = toy_plan()
    write_plan(broken.model_copy(update={"ops": broken.ops[1:]}), "broken.plan.json")
    assert "is not a valid plan" in refused("export", "broken.plan.json", "--to", "torch-csv")


def test_help_stays_instant() -> None:
    """Nothing that is slow to import is needed for help, nor for what export and check say about themselves."""
    code = (
        "import sys; from octocp.cli.main import main; main(['export', '--help']); main(['check', '--help']); "
        "slow = {'numpy', 'octocp.schema', 'ortools', 'numba', 'yaml', 'octocp.runtimes', 'octocp.importers'}; "
        "assert not slow & set(sys.modules), slow & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
