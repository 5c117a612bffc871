"""The Debian package's BLAST databases, written here byte by byte, and the split by cluster on toy families."""

import csv
import json
import operator
import random
import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mi_lib import swissprot
from mi_lib.proteins import AMINO_ACIDS, NAMES, PROTEINS, load_proteins, read_fasta
from mi_lib.swissprot import checksums, distinct, read_blast, read_debian, rebuild, split

ORDER = "-ABCDEFGHIKLMNPQRSTVWXYZU*OJ"  # NCBIstdaa: the byte of a letter is its place
letters = st.text(AMINO_ACIDS, min_size=1, max_size=130)


def write_blast(database, records, version=4, kind=1):
    """A protein database as formatdb writes it; ``records`` are titles and sequences."""
    header, residues, header_at, sequence_at = b"", b"\0", [0], [1]
    for number, (title, sequence) in enumerate(records):
        text = title.encode()
        n = len(text)
        size = bytes([n]) if n < 128 else b"\x81" + bytes([n]) if n < 256 else b"\x82" + n.to_bytes(2, "big")
        header += b"0\x800\x80\xa0\x80\x1a" + size + text + b"\0\0\xa1\x800\x80\xaa\x800\x80\xa0\x80\x1a\tBL_ORD_ID"
        header += b"\0\0\xa1\x80\xa0\x80\x02\x01" + bytes([number]) + bytes(18)
        residues += bytes(ORDER.index(letter) for letter in sequence) + b"\0"
        header_at.append(len(header))
        sequence_at.append(len(residues))
    title, day = b"toy", b"Jan 20, 2022  10:32 AM\0\0\0\0"
    index = struct.pack(">3i", version, kind, len(title)) + title + struct.pack(">i", len(day)) + day
    index += struct.pack(">i", len(records)) + struct.pack("<q", len(residues) - len(records) - 1)
    index += struct.pack(">i", max((len(s) for _, s in records), default=0))
    index += struct.pack(f">{2 * len(header_at)}I", *header_at, *sequence_at)
    database.parent.mkdir(parents=True, exist_ok=True)
    for extension, content in (("pin", index), ("phr", header), ("psq", residues)):
        database.with_name(f"{database.name}.{extension}").write_bytes(content)


def random_protein(seed, length=60):
    return "".join(random.Random(seed).choices(AMINO_ACIDS, k=length))


@pytest.fixture
def debian(tmp_path):
    """An unpacked package: proteins in one to three databases, of all lengths and letters."""
    proteins = {f"P{i:05}": random_protein(i, 40 + 2 * i) for i in range(35)}
    proteins |= {"Q1": "U" + random_protein(1, 59), "Q2": proteins["P00007"], "A1": proteins["P00008"]}
    root = tmp_path / "deb" / "usr" / "share" / "metastudent-data" / "dataset_201401"
    for k, name in enumerate(("MFO", "BPO", "CCO")):
        records = [(f"{a}|GO:0000166" + ",GO:0005524" * (10 * k), s) for a, s in proteins.items() if len(s) % 4 != k]
        write_blast(root / name / "goasp.fasta", records)
    return tmp_path / "deb", {a: s for a, s in sorted(proteins.items()) if 50 <= len(s) <= 100}


@given(st.lists(st.tuples(st.integers(1, 400), letters), max_size=12))
def test_reads_what_the_format_holds(tmp_path_factory, drawn):
    records = [(f"A{i}|" + "x" * n, sequence) for i, (n, sequence) in enumerate(drawn)]
    database = tmp_path_factory.mktemp("blast") / "db"
    write_blast(database, records)
    expected = [(title.split("|")[0], s) for title, s in records if 20 <= len(s) <= 90]
    assert list(read_blast(database, 20, 90)) == expected


def test_every_letter_is_read(tmp_path):
    write_blast(tmp_path / "db", [("A|", ORDER)])
    assert list(read_blast(tmp_path / "db", 1)) == [("A", ORDER)]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "db.psq").unlink(), "expected a file of a BLAST database"),
        (lambda folder: (folder / "db.pin").write_bytes(b""), "damaged or not the index"),
        (lambda folder: (folder / "db.pin").write_bytes((folder / "db.pin").read_bytes()[:-4]), "damaged or not"),
        (lambda folder: (folder / "db.psq").write_bytes(b"\0"), "is damaged: .phr or .psq is shorter"),
        (lambda folder: write_blast(folder / "db", [], version=5), "has version 5 and type 1, expected 4 and 1"),
        (lambda folder: write_blast(folder / "db", [], kind=0), "has version 4 and type 0"),
    ],
)
def test_says_what_is_wrong_with_a_database(spoil, message, tmp_path):
    write_blast(tmp_path / "db", [("A|", random_protein(0)), ("B|", random_protein(1))])
    spoil(tmp_path)
    with pytest.raises(ValueError, match=message):
        list(read_blast(tmp_path / "db"))


def test_package_is_read_from_any_of_its_folders(debian):
    folder, proteins = debian
    for inner in ("", "usr/share/metastudent-data", "usr/share/metastudent-data/dataset_201401"):
        assert read_debian(folder / inner) == proteins
    with pytest.raises(ValueError, match="dpkg-deb -x"):
        read_debian(folder / "usr")


def test_equal_sequences_count_once_and_odd_letters_not(debian):
    proteins = debian[1]
    kept = distinct(proteins)
    assert kept == {a: s for a, s in proteins.items() if a not in ("Q1", "Q2", "P00008")}


@pytest.fixture
def listed(debian, tmp_path):
    """A folder with a list of accessions, and the FASTA texts it stands for."""
    rows = [("P00010", "reference", ""), ("P00006", "reference", "")]
    rows += [("P00012", "training", "P00012"), ("Q2", "training", "P00012"), ("P00020", "held_out", "P00012")]
    folder = tmp_path / "listed"
    folder.mkdir()
    with (folder / "accessions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("accession", "split", "cluster"), *rows])
    swissprot._write_sets(rows, debian[1], folder)
    (folder / "proteins.json").write_text(json.dumps({"sha256": checksums(folder)}))
    return folder, rows


def test_rebuild_gives_the_same_bytes(debian, listed, tmp_path):
    folder, rows = listed
    out = tmp_path / "out"
    assert rebuild(debian[0], out, folder) == {"reference": 2, "training": 2, "held_out": 1}
    for name in NAMES:
        assert (out / f"{name}.fasta.gz").read_bytes() == (folder / f"{name}.fasta.gz").read_bytes()
        found = read_fasta(out / f"{name}.fasta.gz")
        expected = [(a, debian[1][a], cluster) for a, of, cluster in rows if of == name]
        assert list(zip(found.accessions, found.sequences, found.clusters, strict=True)) == expected


def test_rebuild_refuses_another_package_and_writes_nothing(debian, listed, tmp_path):
    proteins = debian[1]
    out, root = tmp_path / "out", tmp_path / "other"
    for change, message in (
        ({"P00010": proteins["P00010"][::-1]}, "has other sequences than"),
        ({"P00006": "MKV"}, "lacks 1 of 5 proteins, P00006 first"),
    ):
        for name in ("MFO", "BPO", "CCO"):
            write_blast(root / name / "goasp.fasta", [(f"{a}|", s) for a, s in (proteins | change).items()])
        with pytest.raises(ValueError, match=message):
            rebuild(root, out, listed[0])
        assert not out.exists()


def test_committed_list_stands_for_the_committed_files():
    with (PROTEINS / "accessions.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["accession", "split", "cluster"]
    for name in NAMES:
        found = load_proteins(name)
        expected = [(accession, cluster) for accession, of, cluster in rows if of == name]
        assert list(zip(found.accessions, found.clusters, strict=True)) == expected
    assert len(rows) - 1 == sum(len(load_proteins(name)) for name in NAMES)
    assert checksums(PROTEINS) == json.loads((PROTEINS / "proteins.json").read_text())["sha256"]


def identity(a, b):
    return sum(map(operator.eq, a, b)) / len(a)


def toy_cluster(sequences, bound):
    """Greedy: each sequence joins the first representative it agrees with."""
    found = {}
    for accession, sequence in sequences.items():
        first = (r for r in dict.fromkeys(found.values()) if identity(sequences[r], sequence) >= bound)
        found[accession] = next(first, accession)
    return found


def toy_similar(queries, targets, bound, thorough=True):
    return {q for q, s in queries.items() if any(identity(s, t) >= bound for t in targets.values())}


def blind_similar(queries, targets, bound, thorough):
    """Finds nothing unless it is thorough."""
    return toy_similar(queries, targets, bound) if thorough else set()


@pytest.fixture(scope="module")
def families():
    """Twenty families: members half to wholly identical to their first, a far cousin, and one member close to both."""
    draw, proteins = random.Random(0), {}

    def changed(sequence, places):
        return "".join(draw.choice(AMINO_ACIDS) if i in places else x for i, x in enumerate(sequence))

    for family in range(20):
        root, places = random_protein(1000 + family), draw.sample(range(60), 36)
        proteins[f"F{family:02}M00"] = root
        for member in range(1, 2 * family):
            proteins[f"F{family:02}M{member:02}"] = changed(root, draw.sample(range(60), draw.choice((0, 3, 10, 27))))
        cousin = changed(root, places)
        between = "".join(root[i] if i in places[:18] else x for i, x in enumerate(cousin))
        proteins |= {f"F{family:02}M98": between, f"F{family:02}M99": cousin}
    return proteins


def split_sets(families, similar, seed):
    rows = split(families, toy_cluster, similar, seed, n_reference=8, cap=20, family=15, share=0.2)
    assert len(rows) == len({accession for accession, _, _ in rows})
    return {name: {a: c for a, of, c in rows if of == name} for name in NAMES}


def nearest(families, accession, others):
    return max(identity(families[accession], families[other]) for other in others)


@pytest.mark.parametrize("similar", [toy_similar, blind_similar])
@pytest.mark.parametrize("seed", [0, 1])
def test_split_keeps_its_promises(families, seed, similar):
    clusters = toy_cluster(families, 0.5)
    reference, training, held_out = split_sets(families, similar, seed).values()
    assert set(reference) <= set(clusters.values()) and set(reference.values()) == {""}
    sizes = Counter(training.values())
    assert held_out and max(sizes.values()) == 20
    for accession, cluster in (training | held_out).items():
        assert cluster == clusters[accession] and cluster not in reference
        assert nearest(families, accession, reference) < 0.5
    for accession, cluster in held_out.items():
        assert sizes[cluster] >= 12
        assert nearest(families, accession, training) < 0.8


def test_split_loses_nothing_that_it_need_not(families):
    clusters = toy_cluster(families, 0.5)
    reference, training, _ = split_sets(families, toy_similar, 0).values()
    assert len(reference) == 8
    far = [a for a in families if clusters[a] not in reference and nearest(families, a, reference) < 0.5]
    sizes = Counter(clusters[a] for a in far)
    small = {a for a in far if sizes[clusters[a]] < 15}
    assert len(far) < sum(clusters[a] not in reference for a in families)  # some were near
    assert small and small <= set(training)


def test_last_search_drops_references_and_not_training(families):
    quick = split_sets(families, lambda *_: set(), 0)
    thorough = split_sets(families, blind_similar, 0)
    assert thorough["training"] == quick["training"]
    near = {r for r in quick["reference"] if nearest(families, r, quick["training"]) >= 0.5}
    assert near and set(thorough["reference"]) == set(quick["reference"]) - near


def test_split_depends_on_the_seed_alone(families):
    rows = [split(families, toy_cluster, toy_similar, seed, n_reference=8) for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]
    with pytest.raises(ValueError, match=r"n_reference=900, expected less than the \d+ clusters"):
        split(families, toy_cluster, toy_similar, n_reference=900)
