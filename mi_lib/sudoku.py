"""Sudoku data: grids, puzzles with one solution, checking, solving, and the symmetries of the game."""

import numpy as np
from numba import njit

SIZE = 81
UNITS = np.concatenate(
    [
        np.arange(81).reshape(9, 9),
        np.arange(81).reshape(9, 9).T,
        np.arange(81).reshape(3, 3, 3, 3).transpose(0, 2, 1, 3).reshape(9, 9),
    ]
)  # (27, 9) cells of the nine rows, nine columns and nine boxes
_BOX = np.arange(81) // 27 * 3 + np.arange(81) % 9 // 3
_COUNT = np.array([bin(i).count("1") for i in range(512)])


@njit(cache=True)
def _search(board, limit, shuffle, rng, out):
    """Depth-first search, fewest candidates first; returns the number of solutions found, at most ``limit``."""
    rows, cols, boxes = np.zeros(9, np.int64), np.zeros(9, np.int64), np.zeros(9, np.int64)
    grid = board.copy()
    for i in range(81):
        if grid[i]:
            bit = 1 << (grid[i] - 1)
            if (rows[i // 9] | cols[i % 9] | boxes[_BOX[i]]) & bit:
                return 0
            rows[i // 9] |= bit
            cols[i % 9] |= bit
            boxes[_BOX[i]] |= bit
    cell, candidates = np.zeros(82, np.int64), np.zeros(82, np.int64)
    depth, found, descend = 0, 0, True
    while True:
        if descend:
            best, fewest, ties = -1, 10, 0
            for i in range(81):
                if grid[i] == 0:
                    free = 511 & ~(rows[i // 9] | cols[i % 9] | boxes[_BOX[i]])
                    n = _COUNT[free]
                    ties = 1 if n < fewest else ties + 1
                    if n < fewest or (shuffle and n == fewest and rng.random() * ties < 1):
                        best, fewest = i, n
                        candidates[depth] = free
                    if n == 0:
                        break
            cell[depth] = best
            if best < 0:
                if found < len(out):
                    out[found] = grid
                found += 1
                if found >= limit or depth == 0:
                    return found
                depth -= 1
        i = cell[depth]
        if grid[i]:
            bit = 1 << (grid[i] - 1)
            rows[i // 9] ^= bit
            cols[i % 9] ^= bit
            boxes[_BOX[i]] ^= bit
            grid[i] = 0
        free = candidates[depth]
        if free == 0:
            if depth == 0:
                return found
            depth -= 1
            descend = False
            continue
        skip = int(rng.random() * _COUNT[free]) if shuffle else 0
        for _ in range(skip):
            free &= free - 1
        bit = free & -free
        candidates[depth] ^= bit
        grid[i] = _COUNT[bit - 1] + 1
        rows[i // 9] |= bit
        cols[i % 9] |= bit
        boxes[_BOX[i]] |= bit
        depth += 1
        descend = True


@njit(cache=True)
def _grids(n, rng):
    out = np.zeros((n, 81), np.uint8)
    empty = np.zeros(81, np.uint8)
    for k in range(n):
        _search(empty, 1, True, rng, out[k : k + 1])
    return out


@njit(cache=True)
def _puzzles(n, rng, low, high):
    puzzles, solutions = np.zeros((n, 81), np.uint8), np.zeros((n, 81), np.uint8)
    empty, spare = np.zeros(81, np.uint8), np.zeros((0, 81), np.uint8)
    k = 0
    while k < n:
        _search(empty, 1, True, rng, solutions[k : k + 1])
        puzzle = solutions[k].copy()
        order = np.argsort(rng.random(81))
        target, clues = low + int(rng.random() * (high - low + 1)), 81
        for i in order:
            if clues == target:
                break
            digit = puzzle[i]
            puzzle[i] = 0
            if _search(puzzle, 2, False, rng, spare) == 1:
                clues -= 1
            else:
                puzzle[i] = digit
        if clues <= high:
            puzzles[k] = puzzle
            k += 1
    return puzzles, solutions


def generate_grids(n: int, seed: int) -> np.ndarray:
    """Random solved grids by randomised backtracking (not exactly uniform over all grids).

    Parameters
    ----------
    n : int
        Number of grids.
    seed : int
        Seed of a PCG64 stream: ``n`` and ``seed`` define the grids.

    Returns
    -------
    ndarray of shape (n, 81), uint8
    """
    if n < 1:
        raise ValueError(f"n={n}, expected at least 1")
    return _grids(n, np.random.default_rng(seed))


def generate_puzzles(n: int, seed: int, clues: tuple[int, int] = (24, 30)) -> tuple[np.ndarray, np.ndarray]:
    """Puzzles with exactly one solution.

    Cells of a random grid are emptied in random order while the solution stays unique, down to a target drawn uniformly
    from ``clues`` (inclusive); grids that cannot be brought to ``clues[1]`` are redrawn.

    Parameters
    ----------
    n : int
    seed : int
    clues : tuple of int
        Smallest and largest number of clues.

    Returns
    -------
    puzzles, solutions : ndarray of shape (n, 81), uint8
        ``0`` is an empty cell.
    """
    if n < 1:
        raise ValueError(f"n={n}, expected at least 1")
    if not 17 <= clues[0] <= clues[1] <= 81:
        raise ValueError(f"clues={clues}, expected 17 <= low <= high <= 81")
    return _puzzles(n, np.random.default_rng(seed), *clues)


def solutions(puzzle: np.ndarray, limit: int = 2) -> np.ndarray:
    """Up to ``limit`` solutions of a puzzle, shape (n, 81); empty if it has none."""
    puzzle = np.asarray(puzzle)
    if puzzle.shape != (SIZE,) or not np.isin(puzzle, range(10)).all():  # compiled code checks no bounds
        raise ValueError(f"puzzle has shape {puzzle.shape} and values {np.unique(puzzle)}, expected (81,) and 0-9")
    if limit < 1:
        raise ValueError(f"limit={limit}, expected at least 1")
    out = np.zeros((limit, 81), np.uint8)
    found = _search(puzzle.astype(np.uint8), limit, False, np.random.default_rng(0), out)
    return out[:found]


def parse_puzzle(text: str) -> np.ndarray:
    """Read a puzzle of 81 characters, ``1``-``9`` for clues and ``.`` or ``0`` for empty cells.

    Returns
    -------
    ndarray of shape (81,), uint8

    Raises
    ------
    ValueError
        If the length or a character is wrong, or a unit holds a digit twice.
    """
    text = text.strip()
    if len(text) != SIZE:
        raise ValueError(f"a puzzle has {SIZE} characters, got {len(text)}")
    for i, c in enumerate(text):
        if c not in ".0123456789":
            raise ValueError(f"character {c!r} at position {i + 1}, expected 1-9, '.' or '0'")
    board = np.array([0 if c == "." else int(c) for c in text], np.uint8)
    conflict = find_conflict(board)
    if conflict:
        raise ValueError(conflict)
    return board


def format_board(board: np.ndarray) -> str:
    """The board as 81 characters, ``.`` for empty."""
    return "".join("." if d == 0 else str(d) for d in np.asarray(board))


def find_conflict(board: np.ndarray) -> str | None:
    """Say which unit holds a digit twice, or return None."""
    for name, units in (("row", UNITS[:9]), ("column", UNITS[9:18]), ("box", UNITS[18:])):
        for k, unit in enumerate(units):
            digits = board[unit][board[unit] > 0]
            if len(set(digits)) < len(digits):
                digit = next(d for d in digits if (digits == d).sum() > 1)
                return f"digit {digit} appears twice in {name} {k + 1}"
    return None


def is_solved(puzzles: np.ndarray, boards: np.ndarray) -> np.ndarray:
    """Whether each board is complete, legal and keeps its puzzle's clues.

    Parameters
    ----------
    puzzles, boards : ndarray of shape (n, 81)

    Returns
    -------
    ndarray of shape (n,), bool
    """
    puzzles, boards = np.asarray(puzzles), np.asarray(boards)
    legal = (np.sort(boards[:, UNITS], -1) == np.arange(1, 10)).all((1, 2))
    return legal & ((puzzles == 0) | (puzzles == boards)).all(1)


def same_unit() -> dict[str, np.ndarray]:
    """Relations between cells: ``row``, ``col``, ``box`` and ``any`` as boolean matrices of shape (81, 81).

    The diagonal is False; a pair may share a row (or a column) and a box.
    """
    i = np.arange(81)
    ids = {"row": i // 9, "col": i % 9, "box": _BOX}
    relations = {name: (x[:, None] == x) & ~np.eye(81, dtype=bool) for name, x in ids.items()}
    return {**relations, "any": relations["row"] | relations["col"] | relations["box"]}


def candidates(board: np.ndarray) -> np.ndarray:
    """Digits each empty cell may still hold by the rules, shape (81, 9), bool; False at filled cells."""
    board = np.asarray(board)
    seen = np.zeros((81, 9), bool)
    peers = same_unit()["any"]
    for d in range(1, 10):
        seen[:, d - 1] = peers[:, board == d].any(1)
    return ~seen & (board == 0)[:, None]


def solve_singles(puzzle: np.ndarray) -> np.ndarray:
    """Fill naked and hidden singles until none is left; the board is complete if singles alone solve it."""
    board = np.array(puzzle, np.uint8)
    while True:
        free = candidates(board)
        naked = free & (free.sum(1) == 1)[:, None]
        hidden = np.zeros_like(free)
        for unit in UNITS:
            hidden[unit] |= free[unit] & (free[unit].sum(0) == 1)
        cells, digits = np.nonzero(naked | hidden)
        if not len(cells):
            return board
        board[cells[0]] = digits[0] + 1  # one at a time: simple, and safe on a contradictory board
