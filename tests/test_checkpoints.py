"""The models by name: heads fit their masked model, and what is shipped is what its sidecar says."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from mi_lib.artifacts import CHECKPOINTS, checkpoint_names, read_sidecar, read_tensors, save_checkpoint
from mi_lib.checkpoints import load_head, load_mdm, load_model
from mi_lib.esmc import ESMCConfig, ESMCModel
from mi_lib.esmc_training import held_out_perplexity
from mi_lib.head import HeadConfig, MIHead
from mi_lib.mdm import MDMConfig, describe, forward_process
from mi_lib.protein_scores import sample
from mi_lib.proteins import load_proteins
from mi_lib.puzzles import load_puzzles
from mi_lib.sudoku import same_unit
from mi_lib.train import held_out_loss

MDMS = checkpoint_names("mdm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_mdm):
    """Two MDMs and a head for the first."""
    path = tmp_path_factory.mktemp("checkpoints")
    for name in ("one", "two"):
        save_checkpoint(name, tiny_mdm, "mdm", describe(tiny_mdm.config), path)
    save_checkpoint("one_head", MIHead(HeadConfig(24, 8)), "head", {"width": 24, "h": 8}, path, model="one")
    return path


def test_a_head_reads_its_model(folder, tiny_case):
    head, model = load_head("one_head", "one", folder), load_mdm("one", folder)
    masked = tiny_case[1] == model.mask_id
    mi = head(model(tiny_case[1]).hidden, masked)
    assert mi.shape == (6, 81, 81)
    assert mi[masked].max() > 0
    assert not head.training


def test_a_head_comes_without_a_model_too(folder):
    a, b = load_head("one_head", folder=folder), load_head("one_head", "one", folder)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_a_head_of_another_model_is_refused(folder):
    with pytest.raises(ValueError, match="head 'one_head' was trained for 'one', not for 'two'"):
        load_head("one_head", "two", folder)


@pytest.mark.parametrize(
    ("load", "name", "message"),
    [
        (load_mdm, "one_head", r"unknown mdm checkpoint 'one_head', expected one of \['one', 'two'\]"),
        (load_head, "one", r"unknown head checkpoint 'one', expected one of \['one_head'\]"),
        (load_head, "none", r"unknown head checkpoint 'none', expected one of \['one_head'\]"),
    ],
)
def test_kinds_are_not_mixed(folder, load, name, message):
    with pytest.raises(ValueError, match=message):
        load(name, folder=folder)


def test_a_model_of_either_kind_by_name(folder, tiny_mdm, tmp_path):
    esmc = ESMCModel(ESMCConfig(16, 2, 1))
    save_checkpoint("mine", esmc, "esmc", asdict(esmc.config), tmp_path)
    save_checkpoint("one", tiny_mdm, "mdm", describe(tiny_mdm.config), tmp_path)
    assert load_model("one", tmp_path).config == tiny_mdm.config
    for name in ("mine", str(tmp_path / "mine.safetensors")):
        model = load_model(name, tmp_path)
        assert isinstance(model, ESMCModel)
        assert model.config == esmc.config
    expected = r"model='two', expected one of \['one', 'mine', 'esmc_300m', 'esmc_600m'\], or a \.pth or"
    with pytest.raises(ValueError, match=expected):
        load_model("two", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no such file: none\.pth"):
        load_model("none.pth", tmp_path)


def test_a_folder_without_checkpoints_has_none(tmp_path):
    with pytest.raises(ValueError, match=r"unknown mdm checkpoint 'one', expected one of \[\]"):
        load_mdm("one", tmp_path)


def test_a_head_of_other_dimensions_is_refused(folder, tmp_path):
    """A width that is not that of the hidden states is named by the head; weights of other sizes on loading."""
    save_checkpoint("wide", MIHead(HeadConfig(30, 8)), "head", {"width": 30, "h": 8}, tmp_path, model="one")
    tokens = torch.zeros(1, 81, dtype=torch.long)
    with pytest.raises(ValueError, match="hidden states are 24 wide, this head was built for width=30"):
        load_head("wide", folder=tmp_path)(load_mdm("one", folder)(tokens).hidden, tokens == 0)
    save_checkpoint("wrong", MIHead(HeadConfig(30, 8)), "head", {"width": 24, "h": 8}, tmp_path, model="one")
    with pytest.raises(ValueError, match=r"wrong\.safetensors does not fit the model: .* expected"):
        load_head("wrong", folder=tmp_path)


CONTROL = MDMConfig(width=192, feed_forward=256, head_width=256, position="learned")
SIZES = {"sudoku_control": (1_060_810, CONTROL)}  # those that are not of the paper's size


@pytest.mark.parametrize("name", checkpoint_names("mdm"))
def test_shipped_mdm_is_what_its_sidecar_says(name):
    model, meta = load_mdm(name), read_sidecar(name, "mdm")
    n_parameters, config = SIZES.get(name, (4_158_346, MDMConfig()))
    assert sum(p.numel() for p in model.parameters()) == n_parameters
    assert model.config == config
    assert {t.dtype for t in read_tensors(CHECKPOINTS / f"{name}.safetensors").values()} == {torch.float16}
    assert held_out_loss(model, (40,))["nats_40"] == pytest.approx(meta["held_out"]["nats_40"], rel=0.01)


@pytest.mark.parametrize("name", checkpoint_names("esmc"))
def test_shipped_esmc_is_what_its_sidecar_says(name):
    """On as many held-out proteins as its curve was of; rounding to float16 moves perplexities by little."""
    model, meta = load_model(name), read_sidecar(name, "esmc")
    assert asdict(model.config) == meta["config"]
    assert {t.dtype for t in read_tensors(CHECKPOINTS / f"{name}.safetensors").values()} == {torch.float16}
    again = held_out_perplexity(model, sample(load_proteins("held_out"), meta["n_held_out"]))
    assert again == pytest.approx(meta["held_out"], rel=0.01)


@pytest.mark.parametrize("name", [n for n in checkpoint_names("head") if read_sidecar(n, "head")["model"] in MDMS])
def test_shipped_head_sees_units(name):
    """Its MI of cells that share a unit is far above that of others, on boards it was not trained on."""
    meta = read_sidecar(name, "head")
    head, model = load_head(name, meta["model"]), load_mdm(meta["model"])
    assert sum(p.numel() for p in head.parameters()) == 99_969
    assert name == f"{meta['model']}_head_{meta['training']['estimator']}"
    grids = torch.from_numpy(load_puzzles("validation", 16)[1]).long()
    rate = torch.full((16,), 49.5 / 81)
    tokens = forward_process(grids, rate, model.mask_id, torch.Generator().manual_seed(0))
    masked = tokens == model.mask_id
    mi = head(model(tokens).hidden, masked)
    pairs = (masked[:, :, None] & masked[:, None]).numpy()
    unit = np.broadcast_to(same_unit()["any"], pairs.shape)
    other = ~(unit | np.eye(81, dtype=bool))
    assert mi[pairs & unit].mean() > 3 * mi[pairs & other].mean()
    assert mi[pairs & unit].mean() > 0.02
