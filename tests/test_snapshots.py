"""Snapshots: what is loaded is what a checkpoint would hold, and the share solved is counted on the validation set."""

import pandas as pd
import pytest
import torch

import mi_lib.snapshots
from mi_lib.artifacts import load_weights, read_tensors
from mi_lib.mdm import MDM, MDMConfig
from mi_lib.puzzles import load_puzzles
from mi_lib.snapshots import load_snapshot, solve_snapshots
from mi_lib.train import MDMTraining, train_mdm

TINY = MDMConfig(width=24, n_layers=1, n_heads=2, feed_forward=32, head_width=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A training of four steps with snapshots at 2 and 4."""
    path = tmp_path_factory.mktemp("training")
    train_mdm(path, TINY, MDMTraining(steps=4, batch_size=2, n_grids=4), save_every=2)
    return path


def test_weights_are_rounded_as_a_checkpoint_rounds_them(folder):
    raw = MDM(TINY)
    load_weights(raw, read_tensors(folder / "average_0000002.safetensors"), "here")
    loaded = load_snapshot(folder, 2)
    different = 0
    for mine, exact in zip(loaded.parameters(), raw.parameters(), strict=True):
        assert mine.dtype == torch.float32
        assert torch.equal(mine, exact.half().float())
        different += int((mine != exact).sum())
    assert different > 0  # float16 does lose digits
    assert not loaded.training


def test_an_unknown_step_is_named_with_those_there_are(folder):
    with pytest.raises(ValueError, match=r"step=3, expected one of the snapshots \[2, 4\]"):
        solve_snapshots(folder, (3,), 2)


def test_share_solved_is_that_of_the_decoded_boards(folder, tmp_path, monkeypatch):
    """With a decoder that solves exactly the boards it is told to; the second call comes from the cache."""
    monkeypatch.setattr(mi_lib.snapshots, "CACHE", tmp_path)
    puzzles, solutions = load_puzzles("validation", 5)
    calls = []

    class Decoded:
        tokens = torch.from_numpy(solutions).long()

    Decoded.tokens[0, (torch.from_numpy(puzzles[0]) == 0).nonzero()[0]] = 0  # one board is left unsolved

    def decode(model, tokens, policy, progress):
        calls.append(tokens.clone())
        progress(5)
        return Decoded

    monkeypatch.setattr(mi_lib.snapshots, "decode", decode)
    done = []
    frame = solve_snapshots(folder, (2, 4), 5, done.append)
    expected = pd.DataFrame({"step": [2, 4], "n": [5, 5], "solved": [0.8, 0.8]})
    pd.testing.assert_frame_equal(frame[["step", "n", "solved"]], expected)
    assert frame["low"].round(3).tolist() == [0.376] * 2  # Wilson's interval of 4 in 5
    assert frame["high"].round(3).tolist() == [0.964] * 2
    assert [call.tolist() for call in calls] == [puzzles.tolist()] * 2
    assert done == [5, 5]
    assert solve_snapshots(folder, (4, 2), 5)["step"].tolist() == [4, 2]
    assert len(calls) == 2
