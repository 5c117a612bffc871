"""Files: what was saved comes back, damage is named, and nothing half-written is ever left under a real name."""

import errno
import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

import mi_lib.artifacts
from mi_lib.artifacts import (
    atomic_path,
    checkpoint_names,
    commit,
    load_checkpoint,
    load_weights,
    provenance,
    read_json,
    read_sidecar,
    read_tensors,
    save_checkpoint,
    sha256,
    write_json,
    write_tensors,
)
from mi_lib.checkpoints import load_head, load_mdm
from mi_lib.head import HeadConfig, MIHead
from mi_lib.mdm import describe


@pytest.fixture
def folder(tmp_path, tiny_mdm):
    """Checkpoints: an MDM "tiny" and a head "tiny_head" trained for it."""
    save_checkpoint("tiny", tiny_mdm, "mdm", describe(tiny_mdm.config), tmp_path, seed=3, steps=7)
    head = MIHead(HeadConfig(24, 8))
    save_checkpoint("tiny_head", head, "head", {"width": 24, "h": 8}, tmp_path, model="tiny")
    return tmp_path


def test_checkpoints_come_back_rounded_to_float16(folder, tiny_mdm):
    model = load_mdm("tiny", folder)
    for name, value in tiny_mdm.state_dict().items():
        back = model.state_dict()[name]
        assert back.dtype == torch.float32
        assert torch.equal(back, value.half().float())
    assert read_tensors(folder / "tiny.safetensors")["token.weight"].dtype == torch.float16
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert model.config == tiny_mdm.config


def test_saving_what_was_loaded_changes_nothing(folder):
    model = load_mdm("tiny", folder)
    save_checkpoint("again", model, "mdm", describe(model.config), folder)
    assert sha256(folder / "again.safetensors") == sha256(folder / "tiny.safetensors")


def test_sidecar_tells_how_it_was_made(folder):
    meta = read_sidecar("tiny", "mdm", folder)
    assert meta["kind"] == "mdm"
    assert (meta["seed"], meta["steps"]) == (3, 7)
    assert meta["sha256"] == sha256(folder / "tiny.safetensors")
    assert {"config", "commit", "versions", "device", "date"} <= meta.keys()


def test_names_are_listed_by_kind(folder):
    assert checkpoint_names("mdm", folder) == ["tiny"]
    assert checkpoint_names("head", folder) == ["tiny_head"]
    assert checkpoint_names(folder=folder) == ["tiny", "tiny_head"]


@pytest.mark.parametrize("name", ["nothing", "tiny_head", "../tiny", ""])
def test_unknown_names_are_answered_with_the_known(folder, name):
    with pytest.raises(ValueError, match=rf"unknown mdm checkpoint '{name}', expected one of \['tiny'\]"):
        load_mdm(name, folder)


def test_one_flipped_bit_is_noticed(folder):
    path = folder / "tiny.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"tiny.safetensors is corrupted: its sha256 is not the one in tiny.json"):
        load_mdm("tiny", folder)


def test_a_truncated_file_is_noticed(folder):
    path = folder / "tiny.safetensors"
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(ValueError, match="corrupted"):
        load_mdm("tiny", folder)
    with pytest.raises(ValueError, match=r"tiny.safetensors is damaged or not a safetensors file"):
        read_tensors(path)


@pytest.mark.parametrize("content", [b"", b"{}", b"\x80\x04K\x01."])
def test_foreign_files_are_refused(tmp_path, content):
    """The last is a pickle: nothing of it is run."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"x.safetensors is damaged or not a safetensors file"):
        read_tensors(path)


def test_missing_files_are_named(folder):
    with pytest.raises(FileNotFoundError, match=r"no such file: .*nowhere"):
        read_tensors(folder / "nowhere")
    (folder / "tiny.safetensors").unlink()
    with pytest.raises(ValueError, match=r"checkpoint 'tiny' has no weights: .* is missing"):
        load_mdm("tiny", folder)


@pytest.mark.parametrize(
    ("change", "tensor"),
    [({"width": 48}, "blocks.0.mlp.0.weight"), ({"n_layers": 1}, "blocks.1.mlp.0.bias"), ({"n_layers": 3}, "blocks.2")],
)
def test_other_dimensions_are_named_with_the_tensor(folder, change, tensor):
    sidecar = folder / "tiny.json"
    meta = json.loads(sidecar.read_text())
    meta["config"].update(change)
    write_json(sidecar, meta)
    with pytest.raises(ValueError, match=rf"tiny.safetensors does not fit the model: '{tensor}.* is .*, expected"):
        load_mdm("tiny", folder)


@pytest.mark.parametrize("content", ["", "{", "not json"])
def test_a_damaged_sidecar_is_named(folder, content):
    (folder / "tiny.json").write_text(content)
    with pytest.raises(ValueError, match=r"tiny.json is damaged or not JSON"):
        load_mdm("tiny", folder)


def test_a_sidecar_without_sum_is_no_proof(folder):
    meta = read_json(folder / "tiny.json")
    del meta["sha256"]
    write_json(folder / "tiny.json", meta)
    with pytest.raises(ValueError, match="corrupted"):
        load_mdm("tiny", folder)


def test_a_head_belongs_to_its_model(folder):
    assert load_head("tiny_head", "tiny", folder).config == HeadConfig(24, 8)
    with pytest.raises(ValueError, match="head 'tiny_head' was trained for 'tiny', not for 'other'"):
        load_head("tiny_head", "other", folder)


def test_weights_that_do_not_fit_leave_the_module_alone():
    module = nn.Linear(2, 3)
    before = module.weight.clone()
    for tensors, message in (
        ({"weight": torch.ones(3, 2)}, r"here does not fit the model: 'bias' is None, expected \(3,\)"),
        ({"weight": torch.ones(3, 2), "bias": torch.ones(4)}, r"'bias' is \(4,\), expected \(3,\)"),
        ({"weight": torch.ones(3, 2), "bias": torch.ones(3), "x": torch.ones(1)}, r"'x' is \(1,\), expected None"),
    ):
        with pytest.raises(ValueError, match=message):
            load_weights(module, tensors, "here")
    assert torch.equal(module.weight, before)


def test_atomic_path_replaces_in_one_go(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with atomic_path(path) as temporary:
        temporary.write_text("one")
        assert temporary.parent == path.parent
        assert not path.exists()
    assert path.read_text() == "one"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_atomic_path_keeps_the_old_file_when_interrupted(tmp_path, error):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(error), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def test_a_kill_while_writing_keeps_the_old_file(tmp_path):
    path = tmp_path / "file.safetensors"
    write_tensors(path, {"a": torch.arange(3)})
    script = f"""
import os, signal
from mi_lib.artifacts import atomic_path
with atomic_path({str(path)!r}) as temporary:
    temporary.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert read_tensors(path)["a"].tolist() == [0, 1, 2]
    assert not [p for p in tmp_path.glob("*.safetensors") if p != path]  # what the kill left has no real name


def test_a_full_disk_keeps_the_old_checkpoint(folder, tiny_mdm, monkeypatch):
    def full(tensors, path, metadata=None):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(mi_lib.artifacts, "save_file", full)
    before = sorted(folder.iterdir())
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint("tiny", tiny_mdm, "mdm", describe(tiny_mdm.config), folder)
    assert sorted(folder.iterdir()) == before
    load_mdm("tiny", folder)


def test_tensors_keep_their_values_types_and_order(tmp_path):
    tensors = {"a": torch.randn(3, 4).T, "b": torch.arange(5), "c": torch.tensor(7), "d": torch.ones(2).half()}
    write_tensors(tmp_path / "x", tensors)
    back = read_tensors(tmp_path / "x")
    assert back.keys() == tensors.keys()
    for name, value in tensors.items():
        assert back[name].dtype == value.dtype
        assert torch.equal(back[name], value)


def test_provenance_names_code_versions_and_what_it_is_told():
    facts = provenance(seed=3)
    assert facts["seed"] == 3
    assert facts["commit"] == commit()
    assert facts["versions"]["torch"] == torch.__version__
    assert f"{torch.get_num_threads()} threads" in facts["device"]


def test_outside_git_the_commit_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(mi_lib.artifacts, "ROOT", tmp_path)
    assert commit() == "unknown"
    monkeypatch.setenv("PATH", "")
    assert commit() == "unknown"


def commit_all(folder):
    """Make a repository of a folder, with one commit."""
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "all"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True)


def test_changed_code_is_dirty_and_changed_results_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(mi_lib.artifacts, "ROOT", tmp_path)
    (tmp_path / "code.py").write_text("1\n")
    (tmp_path / "data" / "results").mkdir(parents=True)
    result = tmp_path / "data" / "results" / "table.csv"
    result.write_text("1\n")
    commit_all(tmp_path)
    clean = commit()
    assert len(clean) == 12
    result.write_text("2\n")
    assert commit() == clean
    (tmp_path / "code.py").write_text("2\n")
    assert commit() == f"{clean}-dirty"


def test_a_checkpoint_that_replaces_a_committed_one_names_the_clean_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(mi_lib.artifacts, "ROOT", tmp_path)
    save_checkpoint("tiny", torch.nn.Linear(2, 2), "head", {}, tmp_path)
    commit_all(tmp_path)
    clean = commit()
    save_checkpoint("tiny", torch.nn.Linear(2, 2), "head", {}, tmp_path)
    assert read_sidecar("tiny", "head", tmp_path)["commit"] == clean


def test_loading_checks_the_sum_before_it_builds(folder):
    def build(config):
        raise AssertionError("built from a corrupted checkpoint")

    with (folder / "tiny.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match="corrupted"):
        load_checkpoint("tiny", "mdm", build, folder)
