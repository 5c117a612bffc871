"""Generated proteins in the cache, the sets they are compared with, and budgets at equal passes."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
import toy_proteins
from toy_proteins import Chain, random_proteins, store_heads

import mi_lib.protein_runs
from mi_lib.artifacts import read_sidecar, save_checkpoint
from mi_lib.distributions import embed
from mi_lib.generation import draw_lengths, fill, generate, masked_nll, masks
from mi_lib.policies import TopK
from mi_lib.protein_runs import (
    NAIVE,
    OTHERS,
    SHUFFLED,
    TARGET_PASSES,
    UNIFORM,
    UNIGRAM,
    added_methods,
    control_sets,
    embedded,
    filled,
    generated,
    generated_table,
    matched_methods,
    model_hashes,
    nearest_lengths,
    reference_split,
    runnable,
)
from mi_lib.proteins import AMINO_ACIDS
from mi_lib.results import write_result
from mi_lib.solving import Method

toy = toy_proteins.toy  # a fixture

SLOPE = 5.0
START = {"EB": 20.0, "Threshold": 22.5, "entropy": 22.0, "mixture": 21.0, "zero": 23.0}  # passes at gamma = 1
GRID = (0.5, 4.0, 16.0)


def silent(*_) -> None:
    pass


def grid(start: dict[str, float] = START, model: str = "toy") -> pd.DataFrame:
    """Passes that fall along a line in the logarithm of the parameter, in no order (of tau they would rise)."""
    rows = []
    for row, at_one in start.items():
        for value in GRID:
            method, parameters = ("MI", f"gamma={value} lam=1.0 head={row}")
            if row in ("EB", "Threshold"):
                method, parameters = row, f"{'gamma' if row == 'EB' else 'tau'}={value}"
            passes = at_one - SLOPE * math.log(value)
            rows.append({"model": model, "method": method, "parameters": parameters, "passes": passes})
    return pd.DataFrame(rows).sample(frac=1, random_state=0)


@pytest.fixture
def runs(monkeypatch) -> list[tuple]:
    """What was really generated: policy and seed."""
    made = []

    def spy(model, policy, lengths, seed, **options):
        made.append((policy, seed))
        return generate(model, policy, lengths, seed, **options)

    monkeypatch.setattr(mi_lib.protein_runs, "generate", spy)
    return made


def test_a_cached_set_is_not_made_again(toy, runs):
    told = []
    first = generated("toy", Method("Naive", k=9), 3, 4, lambda *step: told.append(step))
    assert told[-1] == ("toy Naive k=9, seed 3", 4, 4)
    expected = generate(Chain(), TopK(9), draw_lengths(4, 3), 3)
    pd.testing.assert_frame_equal(first.drop(columns="seconds"), expected.drop(columns="seconds"))
    pd.testing.assert_frame_equal(generated("toy", Method("Naive", k=9), 3, 4, silent), first)
    assert runs == [(TopK(9), 3)]


def test_whatever_decides_a_set_is_in_its_key(toy, runs, monkeypatch):
    monkeypatch.setattr(mi_lib.protein_runs, "draw_lengths", lambda n, seed: [4] * n)
    guided = Method("MI", gamma=9.0, lam=1.0, head="entropy")
    variants = [
        ("toy", guided, 0, 2),
        ("toy", guided, 1, 2),
        ("toy", guided, 0, 3),
        ("toy", Method("MI", gamma=8.0, lam=1.0, head="entropy"), 0, 2),
        ("toy", Method("MI", gamma=9.0, lam=1.0, head="mixture"), 0, 2),
        ("toy", Method("Naive", k=9), 0, 2),
        ("a/toy", Method("Naive", k=9), 0, 2),
        ("b/toy", Method("Naive", k=9), 0, 2),
    ]
    for variant in variants:
        generated(*variant, silent)
    assert len(runs) == 8
    store_heads("toy", seed=1)
    for variant in variants:
        generated(*variant, silent)
    assert len(runs) == 8 + 5


def test_a_shipped_model_is_known_by_its_weights(toy):
    save_checkpoint("toy", torch.nn.Linear(1, 1), "esmc", {})
    hashes = model_hashes(["toy"])
    assert hashes["toy"] == read_sidecar("toy", "esmc")["sha256"]
    assert set(hashes) == {"toy", "toy_head_entropy", "toy_head_mixture"}
    assert model_hashes(["esmc_300m"]) == {"esmc_300m": "esmc_300m"}
    generated("toy", Method("Naive", k=9), 0, 2, silent)
    (path,) = (toy / "cache" / "runs").iterdir()
    assert path.name == f"{hashes['toy'][:12]}-Naive_k=9-proteins-0-2.csv"


def test_tables_name_their_rows(toy):
    table = generated_table("toy", [Method("Random"), Method("Naive", k=9)], [0, 5], 2, silent)
    assert list(table)[:5] == ["model", "method", "parameters", "seed", "protein"]
    assert table["method"].tolist() == (["Random"] * 2 + ["Naive"] * 2) * 2
    assert table["seed"].tolist() == [0] * 4 + [5] * 4
    assert table["parameters"].tolist() == ([""] * 2 + ["k=9"] * 2) * 2


def test_missing_heads_are_named_before_anything_runs(toy, runs):
    guided = [Method("MI", gamma=1.0, lam=1.0, head=head) for head in ("entropy", "zero", "mixture", "entropy")]
    ready, missing = runnable("bare", [Method("Sequential"), *guided])
    assert ready == (Method("Sequential"), guided[1])
    assert missing == ("bare_head_entropy", "bare_head_mixture")
    assert runnable("toy", guided) == (tuple(guided), ())
    with pytest.raises(
        ValueError, match=r"model='bare', expected one with the heads \('bare_head_entropy', .*mi label"
    ):
        generated_table("bare", [Method("Sequential"), *guided], [0], 2, silent)
    assert not runs


def test_filled_proteins_are_scored(toy):
    sequences = list(random_proteins(3).sequences)
    frame = filled("toy", Method("Naive", k=9), sequences, 0.5, 1, 2, silent)
    expected = fill(Chain(), TopK(9), sequences, 0.5, 1)
    hidden = masks(map(len, sequences), 0.5, 1)
    assert frame["sequence"].tolist() == expected["sequence"].tolist()
    assert frame["recovery"].tolist() == expected["recovery"].tolist()
    assert frame["nll"].tolist() == pytest.approx(masked_nll(Chain(), list(frame["sequence"]), hidden, 1, 2).tolist())
    again = filled("toy", Method("Naive", k=9), sequences, 0.5, 1, 2, lambda *_: pytest.fail("made again"))
    pd.testing.assert_frame_equal(again, frame)


def test_embeddings_are_kept(toy, monkeypatch):
    sequences = list(random_proteins(4).sequences)
    points = embedded("toy", sequences)
    np.testing.assert_array_equal(points, embed(Chain(), sequences))
    monkeypatch.setattr(mi_lib.checkpoints, "load_model", lambda name: pytest.fail("loaded again"))
    np.testing.assert_array_equal(embedded("toy", sequences), points)
    with pytest.raises(pytest.fail.Exception):
        embedded("toy", sequences[1:])


def test_reference_and_others_are_disjoint(toy):
    every = random_proteins(60).sequences
    known, others = reference_split("reference", 20)
    assert (len(known), len(others)) == (20, 40)
    assert sorted(known + others) == sorted(every)
    assert [len(part) for part in reference_split("reference", 500)] == [30, 30]
    with pytest.raises(ValueError, match=r"reference='reference \(60 proteins\)', expected a set of at least 62"):
        reference_split("reference", 500, smallest=31)


def test_nearest_lengths_take_each_once():
    sequences = ["L" * n for n in (50, 60, 61, 90)]
    assert list(map(len, nearest_lengths(sequences, [60, 60, 100]))) == [60, 61, 90]
    with pytest.raises(ValueError, match="sequences=4, expected as many as lengths"):
        nearest_lengths(sequences, [50] * 5)


def test_controls_are_what_they_say():
    known, others = (list(random_proteins(40, seed).sequences) for seed in (0, 1))
    sets = control_sets(known, others, 30, [0, 4])
    assert {name: [len(s) for s in made] for name, made in sets.items()} == {
        OTHERS: [30],
        UNIFORM: [30, 30],
        SHUFFLED: [30, 30],
        UNIGRAM: [30, 30],
    }
    assert sets[OTHERS][0] == others[:30]
    for shuffled in sets[SHUFFLED]:
        assert [Counter(s) for s in shuffled] == [Counter(s) for s in others[:30]]
        assert sum(a == b for a, b in zip(shuffled, others, strict=False)) == 0
    assert sets[SHUFFLED][0] != sets[SHUFFLED][1]
    for seed, uniform, unigram in zip((0, 4), sets[UNIFORM], sets[UNIGRAM], strict=True):
        lengths = draw_lengths(30, seed)
        assert list(map(len, unigram)) == lengths.tolist()
        assert np.abs(np.array(list(map(len, uniform))) - lengths).mean() < 5
        assert len(set(uniform)) == 30 and set(uniform) <= set(others)


def test_unigrams_have_the_frequencies_of_the_reference():
    (made,) = control_sets(["LLLLLLLLLA" * 5], ["L" * 50] * 200, 200, [0])[UNIGRAM]
    text = "".join(made)
    assert set(text) == {"L", "A"} < set(AMINO_ACIDS)
    assert text.count("A") / len(text) == pytest.approx(0.1, abs=0.015)


def test_matched_parameters_lie_on_the_line(toy):
    """passes = start - 5 ln(value), so value = exp((start - passes) / 5); other models' grids do not count."""
    write_result("protein_gammas", pd.concat([grid({k: v + 2 for k, v in START.items()}, "other"), grid()]))
    matched = matched_methods("toy")
    assert tuple(matched) == TARGET_PASSES == (15.3, 10.0)
    for target, methods in matched.items():
        value = {row: round(math.exp((start - target) / SLOPE), 4) for row, start in START.items()}
        assert methods == (
            *(Method("MI", gamma=value[head], lam=1.0, head=head) for head in ("entropy", "mixture", "zero")),
            Method("EB", gamma=value["EB"]),
            Method("Threshold", tau=value["Threshold"]),
            Method("Naive", k=NAIVE[target]),
        )
    assert added_methods("toy") == (Method("Random"), *matched[15.3], *matched[10.0])


def test_naive_comes_closest_to_the_passes():
    means = {k: np.mean([math.ceil(n / k) for n in range(50, 101)]) for k in range(1, 30)}
    assert {t: min(means, key=lambda k: abs(means[k] - t)) for t in TARGET_PASSES} == NAIVE


def test_a_grid_that_does_not_reach_is_refused(toy):
    with pytest.raises(ValueError, match="`mi record protein_gammas` makes it"):
        matched_methods("toy")
    write_result("protein_gammas", grid({"EB": 16.0}))
    with pytest.raises(ValueError, match="model='bare', expected one with recorded gammas"):
        matched_methods("bare")
    write_result("protein_gammas", grid({"EB": 30.0}))
    with pytest.raises(ValueError, match=r"target=15.3, expected 16.1 to 33.5 passes, the grid of EB"):
        matched_methods("toy")
