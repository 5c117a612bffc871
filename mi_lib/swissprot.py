"""Swiss-Prot of January 2014, as Debian's metastudent-data carries it in BLAST databases, and its split by cluster."""

import csv
import gzip
import hashlib
import struct
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from mi_lib.artifacts import atomic_path, read_json, write_json
from mi_lib.masked import require
from mi_lib.proteins import AMINO_ACIDS, MAX_LENGTH, MIN_LENGTH, NAMES, PROTEINS, write_fasta

DATABASES = ("BPO", "CCO", "MFO")  # of Gene Ontology; their proteins overlap
NCBISTDAA = b"-ABCDEFGHIKLMNPQRSTVWXYZU*OJ"  # letter of each byte of a .psq file
LETTERS = bytes.maketrans(bytes(range(len(NCBISTDAA))), NCBISTDAA)
COLUMNS = ("accession", "split", "cluster")

Clustering = Callable[[dict[str, str], float], dict[str, str]]  # sequences, identity -> representative of each
Search = Callable[[dict[str, str], dict[str, str], float, bool], set[str]]  # queries that hit a target; thorough or not


def read_blast(database: Path, min_length: int = MIN_LENGTH, max_length: int = MAX_LENGTH) -> Iterator[tuple[str, str]]:
    """Accession and sequence of the proteins in a BLAST protein database, version 4.

    Parameters
    ----------
    database : path
        Without the extensions .pin, .phr, .psq.
    min_length, max_length : int
        Residues; other proteins are passed over.

    Raises
    ------
    ValueError
        If a file is missing, or is no such database.
    """
    files = {extension: Path(f"{database}.{extension}") for extension in ("pin", "phr", "psq")}
    for path in files.values():
        require(path.is_file(), "database", str(path), "a file of a BLAST database")
    index, headers, residues = (path.read_bytes() for path in files.values())
    header_at, sequence_at = _offsets(index, str(files["pin"]))
    if header_at[-1] > len(headers) or sequence_at[-1] > len(residues):
        raise ValueError(f"{database} is damaged: .phr or .psq is shorter than .pin says")
    lengths = np.diff(sequence_at) - 1  # a NUL between two sequences
    for i in np.flatnonzero((lengths >= min_length) & (lengths <= max_length)):
        sequence = residues[sequence_at[i] : sequence_at[i + 1] - 1].translate(LETTERS).decode("ascii")
        yield _accession(headers[header_at[i] : header_at[i + 1]]), sequence


def _offsets(index: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Where headers and sequences begin, one more than there are proteins.

    Format: version, type (1 is protein), title, date, number of proteins, their residues (little-endian, 8 bytes),
    the longest; then the offsets. Numbers are big-endian, 4 bytes; strings have their length before them.
    """
    try:
        version, kind, title = struct.unpack_from(">3i", index)
        (date,) = struct.unpack_from(">i", index, 12 + title)
        at = 16 + title + date
        n, _, _ = struct.unpack_from(">iqi", index, at)
        offsets = np.frombuffer(index, ">u4", 2 * (n + 1), at + 16).astype(np.int64).reshape(2, -1)
    except (struct.error, ValueError) as error:
        raise ValueError(f"{name} is damaged or not the index of a BLAST database ({error})") from None
    if (version, kind) != (4, 1):
        raise ValueError(f"{name} has version {version} and type {kind}, expected 4 and 1 (proteins)")
    return offsets[0], offsets[1]


def _accession(header: bytes) -> str:
    """What precedes the first ``|`` in the title, the first visible string (tag 0x1a) of an ASN.1 header."""
    at = header.index(b"\x1a") + 1
    at += 1 + (header[at] & 0x7F if header[at] & 0x80 else 0)  # a long length has its own length before it
    return header[at : header.index(b"|", at)].decode("ascii")


def find_databases(folder: Path) -> Path:
    """The folder that holds BPO, CCO and MFO: ``folder`` itself, or below it where the Debian package is unpacked."""
    for inner in (".", "dataset_201401", "usr/share/metastudent-data/dataset_201401"):
        if all((Path(folder) / inner / name).is_dir() for name in DATABASES):
            return Path(folder) / inner
    raise ValueError(
        f"from_debian={str(folder)!r}, expected the folder into which Debian's metastudent-data was unpacked "
        "(apt-get download metastudent-data, dpkg-deb -x metastudent-data_*.deb FOLDER)"
    )


def read_debian(folder: Path) -> dict[str, str]:
    """All proteins of 50 to 100 residues, by accession in alphabetical order."""
    found = find_databases(folder)
    proteins = {}
    for name in DATABASES:
        proteins.update(read_blast(found / name / "goasp.fasta"))
    return dict(sorted(proteins.items()))


def distinct(proteins: dict[str, str]) -> dict[str, str]:
    """Proteins of the 20 amino acids; of equal sequences the first accession."""
    first = {}
    for accession, sequence in proteins.items():
        if not set(sequence) - set(AMINO_ACIDS):
            first.setdefault(sequence, accession)
    return {accession: sequence for sequence, accession in first.items()}


def split(
    proteins: dict[str, str],
    cluster: Clustering,
    similar: Search,
    seed: int = 0,
    n_reference: int = 1500,  # twice 500 and room for what the last search drops
    cap: int = 100,  # a cluster in training: a few ribosomal families would be most of it
    family: int = 20,  # members a cluster needs to give held-out proteins: enough for a profile
    share: float = 0.1,  # of such a cluster that is held out
) -> list[tuple[str, str, str]]:
    """Reference, training and held-out proteins, far enough from each other.

    The reference: representatives of clusters at 50 % identity. Training: members of the other clusters that hit no
    reference at 50 %. Held out: groups at 80 % of the large training clusters that hit no training protein at 80 %.
    Last, a more thorough search drops what it still finds too near from the reference and the held-out proteins.

    Parameters
    ----------
    proteins : dict of str to str
        Sequences by accession.
    cluster, similar : callable
        ``mmseqs_cluster`` and ``mmseqs_similar``, or functions like them.
    seed : int
        Decides the reference, the held-out groups and what the cap leaves.

    Returns
    -------
    list of (accession, split, cluster)
        In random order, so that the first n of a split are a random sample of it. The cluster is named by its
        representative, and empty for the reference.
    """
    rng = np.random.default_rng(seed)
    representative = cluster(proteins, 0.5)
    leaders = sorted(set(representative.values()))
    require(n_reference < len(leaders), "n_reference", n_reference, f"less than the {len(leaders)} clusters")
    reference = set(rng.choice(leaders, n_reference, replace=False).tolist())
    rest = {a: s for a, s in proteins.items() if representative[a] not in reference}
    near = similar(rest, _only(proteins, reference), 0.5, False)
    rest = {a: s for a, s in rest.items() if a not in near}
    group = cluster(rest, 0.8)
    training, held_out = set(), set()
    for members in _grouped(rest, representative).values():
        apart = _hold_out(members, group, share, rng) if len(members) >= family else set()
        kept = [accession for accession in members if accession not in apart]
        training |= set(rng.permutation(kept)[:cap].tolist())
        held_out |= apart
    held_out -= similar(_only(rest, held_out), _only(rest, training), 0.8, False)
    chosen = {"reference": reference, "training": training, "held_out": held_out}
    rows = [
        (accession, name, "" if name == "reference" else representative[accession])
        for name, accessions in chosen.items()
        for accession in rng.permutation(sorted(accessions)).tolist()
    ]
    near = set()
    for name, other, identity in (
        ("reference", "training", 0.5),
        ("held_out", "training", 0.8),
        ("held_out", "reference", 0.5),
    ):
        near |= similar(_only(proteins, chosen[name]), _only(proteins, chosen[other]), identity, True)
    return [row for row in rows if row[0] not in near]


def _only(proteins: dict[str, str], accessions: set[str]) -> dict[str, str]:
    return {accession: proteins[accession] for accession in sorted(accessions)}


def _grouped(accessions: Iterable[str], of: dict[str, str]) -> dict[str, list[str]]:
    """Members of each cluster, both in alphabetical order."""
    groups = defaultdict(list)
    for accession in sorted(accessions):
        groups[of[accession]].append(accession)
    return dict(sorted(groups.items()))


def _hold_out(members: list[str], group: dict[str, str], share: float, rng: np.random.Generator) -> set[str]:
    """Whole groups of near-duplicates, in random order, as long as they are at most ``share`` of the members."""
    groups, apart = list(_grouped(members, group).values()), set()
    for i in rng.permutation(len(groups)):
        if len(apart) + len(groups[i]) <= share * len(members):
            apart |= set(groups[i])
    return apart


def mmseqs_cluster(sequences: dict[str, str], identity: float) -> dict[str, str]:
    """Representative of each sequence, by ``mmseqs easy-cluster`` with 80 % of both sequences aligned."""
    with tempfile.TemporaryDirectory() as folder:
        _plain_fasta(Path(folder, "all"), sequences)
        _mmseqs(folder, identity, "easy-cluster", "all", "found", "work", "-c", "0.8", "--cov-mode", "0")
        rows = Path(folder, "found_cluster.tsv").read_text().splitlines()
    return {member: representative for representative, member in (row.split("\t") for row in rows)}


def mmseqs_similar(queries: dict[str, str], targets: dict[str, str], identity: float, thorough: bool) -> set[str]:
    """Queries with a significant local alignment (E < 1e-3) to a target at that identity, however short.

    MMseqs2 is not symmetric and treats low complexity apart: a thorough search goes both ways, with and without that.
    """
    common = ("-s", "7.5", "--max-seqs", "1000", "-e", "1e-3", "--format-output", "query,target")
    directions = [("queries", "targets"), ("targets", "queries")] if thorough else [("queries", "targets")]
    found = set()
    with tempfile.TemporaryDirectory() as folder:
        _plain_fasta(Path(folder, "queries"), queries)
        _plain_fasta(Path(folder, "targets"), targets)
        for files in directions:
            for options in [(), ("--mask", "0", "--comp-bias-corr", "0")] if thorough else [()]:
                _mmseqs(folder, identity, "easy-search", *files, "hits", "work", *common, *options)
                found |= set(Path(folder, "hits").read_text().split())
    return found & queries.keys()


def _plain_fasta(path: Path, sequences: dict[str, str]) -> None:
    path.write_text("".join(f">{accession}\n{sequence}\n" for accession, sequence in sequences.items()))


def _mmseqs(folder: str, identity: float, *words: str) -> None:
    options = ("--min-seq-id", str(identity), "--threads", "1", "-v", "1")
    subprocess.run(["mmseqs", *words, *options], cwd=folder, check=True, capture_output=True)


def write_split(debian: Path, folder: Path = PROTEINS, seed: int = 0) -> None:
    """Split anew with MMseqs2: write ``accessions.csv`` and the FASTA files, and their checksums in ``proteins.json``.

    Another version of MMseqs2 may split otherwise: what is committed was made once; ``rebuild`` makes it again.
    """
    proteins = read_debian(debian)
    rows = split(distinct(proteins), mmseqs_cluster, mmseqs_similar, seed)
    with atomic_path(folder / "accessions.csv") as temporary, temporary.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    _write_sets(rows, proteins, folder)
    write_json(folder / "proteins.json", {"sha256": checksums(folder)})


def rebuild(debian: Path, folder: Path = PROTEINS, listed: Path = PROTEINS) -> dict[str, int]:
    """Write the committed FASTA files again, from the accessions and the unpacked Debian package.

    Parameters
    ----------
    debian : path
        Where metastudent-data was unpacked.
    folder : path
        Where the files go.
    listed : path
        Where ``accessions.csv`` and ``proteins.json`` are.

    Returns
    -------
    dict of str to int
        Proteins in each set.

    Raises
    ------
    ValueError
        If ``debian`` holds no such databases, lacks an accession, or has other sequences.
    """
    proteins = read_debian(debian)
    with (listed / "accessions.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    missing = [accession for accession, *_ in rows if accession not in proteins]
    if missing:
        raise ValueError(f"{debian} lacks {len(missing)} of {len(rows)} proteins, {missing[0]} first; wrong version?")
    expected = read_json(listed / "proteins.json")["sha256"]
    with tempfile.TemporaryDirectory() as temporary:
        _write_sets(rows, proteins, Path(temporary))
        found = checksums(Path(temporary))
    if found != expected:
        raise ValueError(f"{debian} has other sequences than {listed / 'proteins.json'} says: {found}")
    _write_sets(rows, proteins, folder)
    return {name: sum(row[1] == name for row in rows) for name in NAMES}


def _write_sets(rows: list, proteins: dict[str, str], folder: Path) -> None:
    for name in NAMES:
        accessions, _, clusters = zip(*(row for row in rows if row[1] == name), strict=True)
        write_fasta(folder / f"{name}.fasta.gz", accessions, [proteins[a] for a in accessions], clusters)


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of the text in each FASTA file; that of a gzip file depends on the compressor too."""
    texts = {name: gzip.decompress((folder / f"{name}.fasta.gz").read_bytes()) for name in NAMES}
    return {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
