"""Protein sequences: read, write, encode. Tokens are those of esm's tokenizer."""

import gzip
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from mi_lib.artifacts import DATA, atomic_path
from mi_lib.masked import require, vocab_index

AMINO_ACIDS = "LAGVSERTIDPKQNFYMHWC"  # in the order of esm's tokens
FIRST_ID = 4  # of amino acids; esm's tokens 0 to 3 are cls, pad, eos and unknown
MASK_ID = 32
MIN_LENGTH, MAX_LENGTH = 50, 100  # residues, paper section 5.3
NAMES = ("reference", "training", "held_out")

PROTEINS = DATA / "proteins"
IDS = torch.arange(FIRST_ID, FIRST_ID + len(AMINO_ACIDS))


@dataclass(frozen=True)
class ProteinSet:
    """Proteins in the order of their file.

    Attributes
    ----------
    accessions : tuple of str
    sequences : tuple of str
        Of the letters of ``AMINO_ACIDS`` only.
    clusters : tuple of str
        What stands after ``cluster=`` in the description; empty where there is none.
    skipped : dict of str to int
        How many records were left out, by reason.
    """

    accessions: tuple[str, ...]
    sequences: tuple[str, ...]
    clusters: tuple[str, ...]
    skipped: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sequences)


def read_fasta(path: Path | str, min_length: int = MIN_LENGTH, max_length: int = MAX_LENGTH) -> ProteinSet:
    """Read a FASTA file, plain or gzipped; records of other lengths or with other letters are skipped and counted.

    Parameters
    ----------
    path : path
    min_length, max_length : int
        Residues, both inclusive.

    Returns
    -------
    ProteinSet

    Raises
    ------
    ValueError
        If the file is missing, damaged, empty or no FASTA file, or no record is left.
    """
    require(1 <= min_length <= max_length, "min_length", min_length, f"1 to max_length={max_length}")
    reasons = (f"shorter than {min_length}", f"longer than {max_length}", "letters other than the 20 amino acids")
    kept, skipped = [], Counter()
    for title, sequence in _records(Path(path)):
        sequence = sequence.upper()
        wrong = len(sequence) < min_length, len(sequence) > max_length, bool(set(sequence) - set(AMINO_ACIDS))
        if any(wrong):
            skipped[reasons[wrong.index(True)]] += 1
            continue
        words = title.split() or [""]
        cluster = next((word[8:] for word in words[1:] if word.startswith("cluster=")), "")
        kept.append((words[0], sequence, cluster))
    if not kept:
        counts = ", ".join(f"{n} {reason}" for reason, n in skipped.items())
        raise ValueError(f"{path} has no protein of {min_length} to {max_length} residues: {counts}")
    accessions, sequences, clusters = zip(*kept, strict=True)
    return ProteinSet(accessions, sequences, clusters, dict(skipped))


def _records(path: Path) -> Iterator[tuple[str, str]]:
    """Title and sequence of each record."""
    from Bio.SeqIO.FastaIO import SimpleFastaParser

    require(path.is_file(), "path", str(path), "a FASTA file that exists")
    data = path.read_bytes()
    try:
        text = (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode("utf-8-sig").lstrip()
    except (EOFError, OSError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not a FASTA file ({error})") from None
    if not text:
        raise ValueError(f"{path} is empty, expected a FASTA file")
    if not text.startswith(">"):
        raise ValueError(f"{path} is not a FASTA file: it begins with {text[:20]!r}, expected '>'")
    return SimpleFastaParser(io.StringIO(text))


def write_fasta(
    path: Path | str, accessions: Sequence[str], sequences: Sequence[str], clusters: Sequence[str] | None = None
) -> None:
    """Write a gzipped FASTA file; the same records give the same bytes.

    Parameters
    ----------
    path : path
    accessions, sequences : sequences of str
    clusters : sequence of str, optional
        Written as ``cluster=`` after the accession where not empty.

    Raises
    ------
    ValueError
        If the numbers of accessions, sequences and clusters differ, or an accession is empty or holds white space.
    """
    clusters = [""] * len(accessions) if clusters is None else clusters
    require(len(sequences) == len(accessions), "sequences", len(sequences), f"{len(accessions)}, as many as accessions")
    require(len(clusters) == len(accessions), "clusters", len(clusters), f"{len(accessions)}, as many as accessions")
    lines = []
    for accession, sequence, cluster in zip(accessions, sequences, clusters, strict=True):
        for name, word in (("accession", accession), ("sequence", sequence), ("cluster", cluster or "-")):
            require(word.split() == [word], name, word, "a word without white space")
        lines.append(f">{accession} cluster={cluster}\n{sequence}\n" if cluster else f">{accession}\n{sequence}\n")
    with (
        atomic_path(Path(path)) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=9, fileobj=raw, mtime=0) as file,  # no name, no time
    ):
        file.write("".join(lines).encode())


def encode(sequences: Sequence[str]) -> Tensor:
    """Token ids of sequences of one length.

    Parameters
    ----------
    sequences : sequence of str

    Returns
    -------
    LongTensor of shape (B, L)
        Ids 4 to 23; no cls, no eos.

    Raises
    ------
    ValueError
        If there is none, lengths differ, or a letter is not one of the 20 amino acids.
    """
    require(len(sequences) > 0 and not isinstance(sequences, str), "sequences", sequences, "a list of sequences")
    lengths = sorted({len(sequence) for sequence in sequences})
    require(len(lengths) == 1 and lengths[0] > 0, "lengths", lengths, "one length for all sequences of a batch")
    unknown = "".join(sorted(set().union(*sequences) - set(AMINO_ACIDS)))
    require(not unknown, "letters", unknown, f"only {AMINO_ACIDS}")
    letters = torch.tensor([list(sequence.encode()) for sequence in sequences])
    return vocab_index(torch.tensor(list(AMINO_ACIDS.encode())))[letters] + FIRST_ID


def decode_tokens(tokens: Tensor) -> list[str]:
    """Sequences of letters of tokens of shape (B, L); a masked position is ``_``.

    Raises
    ------
    ValueError
        If ``tokens`` is not an int64 tensor of shape (B, L), or an id is neither an amino acid nor the mask.
    """
    if tokens.dim() != 2 or tokens.dtype != torch.int64:
        raise ValueError(f"tokens must be int64 of shape (B, L), got {tokens.dtype} of shape {tuple(tokens.shape)}")
    letters = {MASK_ID: "_", **dict(zip(IDS.tolist(), AMINO_ACIDS, strict=True))}
    unknown = sorted(set(tokens.flatten().tolist()) - letters.keys())
    require(not unknown, "tokens", unknown, f"{FIRST_ID} to {FIRST_ID + len(AMINO_ACIDS) - 1}, or {MASK_ID} (mask)")
    return ["".join(letters[token] for token in row) for row in tokens.tolist()]


def load_proteins(name_or_path: Path | str) -> ProteinSet:
    """A committed set by its name (``reference``, ``training``, ``held_out``), or else the FASTA file of that path.

    Raises
    ------
    ValueError
        If there is no such file, or it is no FASTA file of proteins of 50 to 100 residues.
    """
    if name_or_path in NAMES:
        return read_fasta(PROTEINS / f"{name_or_path}.fasta.gz")
    if not Path(name_or_path).is_file():
        raise ValueError(f"proteins={str(name_or_path)!r}, expected one of {NAMES} or the path of a FASTA file")
    return read_fasta(name_or_path)
