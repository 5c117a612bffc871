"""The puzzle sets: the committed hard test set, four more drawn from seeds, and the validation puzzles."""

import numpy as np
import pandas as pd

from mi_lib.artifacts import DATA, atomic_path, provenance, read_json, sha256, write_json
from mi_lib.sudoku import find_conflict, format_board, generate_puzzles, parse_puzzle, solve_singles
from mi_lib.symmetry import canonical_form, invariant

TEST = DATA / "sudoku" / "hard_1000.csv"
TEST_SEED = 20_260_000  # set k is drawn from TEST_SEED + k
VALIDATION_SEED = 20_261_000
N_TEST, N_VALIDATION, N_SETS = 1_000, 4_000, 5


def load_puzzles(name: str | int = 0, n: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Puzzles and their solutions.

    Parameters
    ----------
    name : {0, 1, 2, 3, 4, "validation"}
        ``0`` is the committed test set of 1000 puzzles; ``1`` to ``4`` are further sets of 1000 drawn from seeds;
        ``"validation"`` holds the 4000 on which every choice is made.
    n : int, optional
        Only the first ``n``.

    Returns
    -------
    puzzles, solutions : ndarray of shape (n, 81), uint8

    Raises
    ------
    ValueError
        If the set is unknown, smaller than ``n``, or its file is damaged.
    """
    if name == "validation":
        size, seed = N_VALIDATION, VALIDATION_SEED
    elif isinstance(name, int) and 0 <= name < N_SETS:
        size, seed = N_TEST, TEST_SEED + name
    else:
        raise ValueError(f"puzzle set {name!r}, expected 0 to {N_SETS - 1} or 'validation'")
    n = size if n is None else n
    if not 1 <= n <= size:
        raise ValueError(f"n_puzzles={n}, expected 1 to {size}: the set holds {size}")
    puzzles, solutions = _read_test() if name == 0 else generate_puzzles(n, seed)  # a prefix of the set
    return puzzles[:n], solutions[:n]


def _read_test() -> tuple[np.ndarray, np.ndarray]:
    facts = TEST.with_suffix(".json")
    if sha256(TEST) != read_json(facts).get("sha256"):
        raise ValueError(f"{TEST} is damaged: its sha256 is not the one in {facts.name}; restore it")
    frame = pd.read_csv(TEST, dtype=str)
    puzzles, solutions = (np.stack([parse_puzzle(text) for text in frame[c]]) for c in ("puzzle", "solution"))
    return puzzles, solutions


def count_repeats(grids: np.ndarray) -> dict[str, int]:
    """How many solutions of each puzzle set are among ``grids``, as they are or under the symmetries of Sudoku.

    Parameters
    ----------
    grids : ndarray of shape (n, 81)
        Training grids.

    Returns
    -------
    dict
        From the name of a set to the number of its puzzles whose solution is a training grid in disguise.
    """
    sets = {str(name): load_puzzles(name)[1] for name in (*range(N_SETS), "validation")}
    numbers = {name: invariant(solutions) for name, solutions in sets.items()}
    trained = invariant(grids)
    seen = set(_forms(grids[np.isin(trained, np.concatenate(list(numbers.values())))]))
    return {k: sum(f in seen for f in _forms(sets[k][np.isin(numbers[k], trained)])) for k in sets}


def _forms(grids: np.ndarray) -> list[bytes]:
    return [form.tobytes() for form in canonical_form(grids)]


def write_test() -> None:
    """Write the committed test set and its facts (seed, clue histogram, share that singles solve)."""
    puzzles, answers = generate_puzzles(N_TEST, TEST_SEED)
    frame = pd.DataFrame({"puzzle": map(format_board, puzzles), "solution": map(format_board, answers)})
    with atomic_path(TEST) as temporary:
        frame.to_csv(temporary, index=False)
    clues = (puzzles > 0).sum(1)
    by_singles = np.mean([(solve_singles(p) > 0).all() for p in puzzles])
    facts = {
        "seed": TEST_SEED,
        "n": N_TEST,
        "sha256": sha256(TEST),
        "mean_clues": float(clues.mean()),
        "clue_histogram": {str(c): int(k) for c, k in zip(*np.unique(clues, return_counts=True), strict=True)},
        "solved_by_singles": float(by_singles),
        "conflicts": sum(find_conflict(p) is not None for p in puzzles),
    }
    write_json(TEST.with_suffix(".json"), provenance(**facts))
