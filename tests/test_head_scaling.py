"""Scaling of the head: fewer boards are the first boards, and each score is that of a head trained on them alone."""

import pandas as pd
import pytest
import torch

from mi_lib.head import HeadConfig
from mi_lib.head_scaling import first_boards, scale_head
from mi_lib.head_scores import pair_table, score_table
from mi_lib.head_training import HeadTraining, gather_pairs, train_head
from mi_lib.labels import Labelling, make_labels, read_labels

QUICK = HeadTraining(epochs=2, boards_per_batch=2)


@pytest.fixture(scope="module")
def folders(tiny_mdm, tmp_path_factory):
    """Six row-probed boards to train on, and six fully probed ones."""

    def states(model, n, seed):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(1, 10, (n, 81), generator=generator)
        rank = torch.rand(n, 81, generator=generator).argsort(-1)
        return torch.where(rank < 14, 0, tokens)

    place = tmp_path_factory.mktemp("labels")
    for name, rows, seed in (("train", 2, 0), ("held_out", 0, 1)):
        make_labels(place / name, tiny_mdm, Labelling("x", 6, rows, 0.0, seed, 3), states)
    return place


def test_first_boards_are_those_of_a_shorter_set(tiny_mdm, folders):
    whole = gather_pairs(tiny_mdm, read_labels(folders / "train", 6), "mixture")
    part = first_boards(whole, 3)
    alone = gather_pairs(tiny_mdm, read_labels(folders / "train", 3), "mixture")
    for name in ("board", "target"):
        assert torch.equal(getattr(part, name), getattr(alone, name))
    for name in ("i", "j"):
        torch.testing.assert_close(part.hidden[getattr(part, name)], alone.hidden[getattr(alone, name)])
    assert 0 < len(part.target) < len(whole.target)


def test_each_score_is_that_of_a_head_trained_alone(tiny_mdm, folders):
    held_out, done = read_labels(folders / "held_out"), []
    frame = scale_head(tiny_mdm, folders / "train", held_out, "kl", (3, 6), done.append, QUICK)
    rows = []
    for n in (3, 6):
        pairs = gather_pairs(tiny_mdm, read_labels(folders / "train", n), "kl")
        training = HeadTraining("kl", epochs=2, boards_per_batch=2)
        head = train_head(pairs, HeadConfig(width=24), training)
        row = score_table(pair_table(tiny_mdm, held_out, "kl", {"head": head}), ["head"]).iloc[0]
        rows.append({"n_boards": n, "r2": row["r2"], "r2_low": row["r2_low"], "spearman": row["spearman"]})
    assert done == [1, 1]
    pd.testing.assert_frame_equal(frame[["n_boards", "r2", "r2_low", "spearman"]], pd.DataFrame(rows), rtol=1e-4)
