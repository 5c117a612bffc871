"""The search for a state like the paper's Fig. 1, on a model that knows the solutions, and the choice of a board."""

import numpy as np
import pytest
import torch
from tabular import SupportModel

from mi_lib.belief import confined_digits
from mi_lib.fig1 import Screen, State, board_before, choose_state, find_fig1_state, screen_states
from mi_lib.ground_truth import mutual_information
from mi_lib.head import HeadConfig, MIHead
from mi_lib.policies import Sequential, TopK
from mi_lib.puzzles import load_puzzles
from mi_lib.samplers import decode
from mi_lib.sudoku import UNITS, parse_puzzle

N = 6


@pytest.fixture(scope="module")
def model():
    """Its belief: one of the solutions of the first six test puzzles. So every decode is right, cell by cell."""
    grids = torch.from_numpy(load_puzzles(0, N)[1]).long()
    return SupportModel(grids - 1, torch.ones(N), vocab=torch.arange(1, 10), mask_id=0)


@pytest.fixture(scope="module")
def head():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MIHead(HeadConfig(width=9, h=8)).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def found(model, head):
    return find_fig1_state(model, head, n_puzzles=N, n_probe=4, screen=Screen(unit=-1, digit=-1))


def test_board_before_each_step(model):
    puzzles = torch.from_numpy(load_puzzles(0, 2)[0]).long()
    decoded = decode(model, puzzles, TopK(7))
    assert torch.equal(board_before(decoded, 1, 0), puzzles[1])
    for step in range(1, int(decoded.step[1].max()) + 1):
        assert int((board_before(decoded, 1, step) > 0).sum()) == int((puzzles[1] > 0).sum()) + 7 * step
    with pytest.raises(ValueError, match="step=99, expected 0 to"):
        board_before(decoded, 1, 99)


def test_found_states_are_what_they_claim(model, found):
    puzzles, answers = load_puzzles(0, N)
    assert len(found) == 4
    for _, row in found.iterrows():
        board, answer = parse_puzzle(row["board"]), answers[row["puzzle"]]
        given = puzzles[row["puzzle"]]
        assert ((board == 0) | (board == answer)).all()
        assert (board[given > 0] == given[given > 0]).all()
        assert (board > 0).sum() == (given > 0).sum() + row["step"]
        assert row["next_digit"] == 8 == answer[row["next_cell"]]
        assert row["next_cell"] not in (row["cell_a"], row["cell_b"])
        unit = UNITS[row["unit"]]
        fits = [c for c in unit if board[c] == 0 and all(row["digit"] not in board[v] for v in UNITS if c in v)]
        assert sorted(fits) == [row["cell_a"], row["cell_b"]]
        mi = mutual_information(model, torch.from_numpy(board).long()).numpy()
        assert row["entropy"] == pytest.approx(mi[row["cell_a"], row["cell_b"]], abs=1e-6)


def test_found_states_are_ordered_by_distance_possible_ones_first(found):
    distance = (found["entropy"] - 0.44).abs() + 10 * ~found["possible"]
    assert distance.is_monotonic_increasing
    assert (found["possible"] == (found["entropy"] <= found[["entropy_a", "entropy_b"]].min(axis=1))).all()
    assert found["n_screened"].nunique() == 1 and found["n_screened"].iloc[0] >= 4


def test_screen():
    board = np.zeros(81, int)
    board[72:79] = [2, 3, 4, 5, 6, 7, 9]  # the bottom row lacks 1 and 8
    pairs = confined_digits(board)
    kept = pairs[Screen().keeps(pairs)]
    assert kept[["unit", "digit", "cell_a", "cell_b"]].to_numpy().tolist() == [[8, 1, 79, 80]]
    assert set(pairs[Screen(digit=-1).keeps(pairs)]["digit"]) == {1, 8}
    assert Screen(unit=-1).keeps(pairs).sum() == 1
    assert not Screen(unit=0).keeps(pairs).any()


def test_an_error_ends_the_screening_of_a_decode(model):
    puzzles, answers = load_puzzles(0, 1)
    decoded = decode(model, torch.from_numpy(puzzles).long(), Sequential())
    wide = Screen(unit=-1, digit=-1, next_digit=-1)
    full = screen_states(decoded, answers, wide)
    wrong = answers.copy()
    wrong[0, int((decoded.step[0] == 5).nonzero()[0])] %= 9
    wrong[0, int((decoded.step[0] == 5).nonzero()[0])] += 1  # another digit than was written at step 5
    cut = screen_states(decoded, wrong, wide)
    assert full["step"].max() > 5 > cut["step"].max()
    assert cut.equals(full[full["step"] < 5])


def test_a_screen_that_nothing_passes(model, head):
    with pytest.raises(ValueError, match=r"screen=Screen\(.*expected one that some state of 1 decodes passes"):
        find_fig1_state(model, head, n_puzzles=1, screen=Screen(next_digit=10))


def test_choose_state(model, found):
    recorded = found.assign(checkpoint="exact")
    state = choose_state(model, recorded, "exact", puzzle=-1, step=-1)
    first = recorded.iloc[0]
    assert state.pair == (first["cell_a"], first["cell_b"])
    assert state.digit == first["digit"]
    assert (state.board.numpy() == parse_puzzle(first["board"])).all()
    assert (state.given.numpy() == load_puzzles(0)[0][first["puzzle"]]).all()
    own = choose_state(model, recorded, "exact", puzzle=3, step=10)
    assert int((own.board > 0).sum()) == int((own.given > 0).sum()) + 10
    assert own.board[own.next_cell] == 0
    assert own.next_digit == load_puzzles(0)[1][3][own.next_cell]
    assert own.pair == ()
    half = choose_state(model, recorded, "exact", puzzle=3, step=-1)
    assert half.step == (int((half.given == 0).sum()) - 1) // 2


@pytest.mark.parametrize(
    "checkpoint, puzzle, step, message",
    [
        ("other", -1, -1, "checkpoint='other', expected one with a recorded state"),
        ("exact", -1, 3, "step=3, expected -1 with puzzle=-1"),
        ("exact", 1000, 3, "puzzle=1000, expected the index of a test puzzle"),
        ("exact", 0, 80, "step=80, expected 0 to"),
    ],
)
def test_states_that_are_not_there(model, found, checkpoint, puzzle, step, message):
    with pytest.raises(ValueError, match=message):
        choose_state(model, found.assign(checkpoint="exact"), checkpoint, puzzle, step)


def test_cells_to_draw():
    board = torch.zeros(81, dtype=torch.long)
    board[0] = 5
    mi = np.zeros((81, 81))
    mi[3, 7] = mi[7, 3] = 0.5
    mi[7, 9] = mi[9, 7] = 0.2
    recorded = State(0, 0, board, board, 1, 8, pair=(9, 20), digit=1)
    assert recorded.cells(mi) == (9, 20)
    assert recorded.cells(mi, 20) == (20, 9)
    assert recorded.cells(mi, 3) == (3, 7)
    assert State(0, 0, board, board, 1, 8).cells(mi) == (7, 3)
    with pytest.raises(ValueError, match="cell=0, expected an empty cell"):
        recorded.cells(mi, 0)
