"""Proteins: what is read, skipped and refused, tokens, and the facts of the committed files."""

import gzip
import re
from collections import Counter, defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mi_lib.proteins import (
    AMINO_ACIDS,
    MASK_ID,
    NAMES,
    PROTEINS,
    decode_tokens,
    encode,
    load_proteins,
    read_fasta,
    write_fasta,
)

GOOD = "ACDEFGHIKLMNPQRSTVWY" * 3  # 60 residues
sequences = st.text(AMINO_ACIDS, min_size=50, max_size=100)
words = st.text("ABCDEFXYZ0123456789_|-.", min_size=1, max_size=12)


@pytest.fixture(scope="module")
def sets():
    return {name: load_proteins(name) for name in NAMES}


def test_reads_wrapped_records_and_counts_what_it_skips(tmp_path):
    path = tmp_path / "mixed.fasta"
    path.write_text(
        f">sp|A1|ONE_HUMAN a protein OS=Homo sapiens\n{GOOD[:25]}\n{GOOD[25:]}\n"
        f">A2 cluster=A1 more\n{GOOD.lower()}\n\n"
        f">A3 cluster=A1\n{GOOD[:49]}\n"
        f">A4\n{'A' * 101}\n"
        f">A5\n{GOOD[:59]}X\n>A6\n{GOOD[:59]}*\n>A7\n{GOOD[:30]}-{GOOD[:30]}\n"
        f">A8\n{'G' * 50}\n>A9\n{'G' * 100}\n>A10\n"
    )
    found = read_fasta(path)
    assert found.accessions == ("sp|A1|ONE_HUMAN", "A2", "A8", "A9")
    assert found.sequences == (GOOD, GOOD, "G" * 50, "G" * 100)
    assert found.clusters == ("", "A1", "", "")
    letters = "letters other than the 20 amino acids"
    assert found.skipped == {"shorter than 50": 2, "longer than 100": 1, letters: 3}
    assert len(found) == 4
    assert read_fasta(path, 101, 101).accessions == ("A4",)


@pytest.mark.parametrize("zipped", [False, True])
def test_reads_plain_and_gzipped_files_with_any_name_and_line_ends(zipped, tmp_path):
    data = f"\ufeff\n>A1 x\r\n{GOOD[:30]}\r\n{GOOD[30:]}\r\n".encode()
    (tmp_path / "proteins").write_bytes(gzip.compress(data) if zipped else data)
    assert load_proteins(tmp_path / "proteins").sequences == (GOOD,)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "expected a FASTA file that exists"),
        (b"", "is empty, expected a FASTA file"),
        (b" \n\n", "is empty"),
        (gzip.compress(b""), "is empty"),
        (b"accession,sequence\nA1,ACD\n", "is not a FASTA file: it begins with 'accession,sequence\\nA', expected '>'"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "is damaged or not a FASTA file"),
        (gzip.compress(f">A1\n{GOOD}\n".encode())[:-9], "is damaged or not a FASTA file"),
        (b"\x1f\x8bgarbage", "is damaged or not a FASTA file"),
        (b">A1\nACD\n>A2\nACX\n", "has no protein of 50 to 100 residues: 2 shorter than 50"),
        (b">A1\n" + b"B" * 60, "residues: 1 letters other than the 20 amino acids"),
    ],
    ids=["missing", "empty", "blank", "zipped-empty", "csv", "binary", "cut", "not-gzip", "short", "letters"],
)
def test_says_what_is_wrong_with_a_file(data, message, tmp_path):
    path = tmp_path / "x.fasta"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_fasta(path)
    assert "x.fasta" in str(caught.value)


def test_refuses_lengths_names_and_folders(tmp_path):
    with pytest.raises(ValueError, match="min_length=0"):
        read_fasta(tmp_path / "x", min_length=0)
    with pytest.raises(ValueError, match="min_length=60, expected 1 to max_length=50"):
        read_fasta(tmp_path / "x", 60, 50)
    for name in ("refrence", tmp_path):
        with pytest.raises(ValueError, match=r"proteins='.*', expected one of \('reference', 'training', 'held_out'\)"):
            load_proteins(name)


@given(st.lists(st.tuples(words, sequences, st.one_of(st.just(""), words)), min_size=1, max_size=8))
def test_what_is_written_is_read(tmp_path_factory, records):
    folder = tmp_path_factory.mktemp("round")
    columns = tuple(zip(*records, strict=True))
    write_fasta(folder / "a.fasta.gz", *columns)
    found = read_fasta(folder / "a.fasta.gz")
    assert (found.accessions, found.sequences, found.clusters) == columns
    assert found.skipped == {}


def test_the_same_records_give_the_same_bytes(tmp_path):
    for name in ("a.fasta.gz", "another.gz"):
        write_fasta(tmp_path / name, ["A1", "A2"], [GOOD, GOOD[::-1]], ["", "A1"])
    data = (tmp_path / "a.fasta.gz").read_bytes()
    assert data == (tmp_path / "another.gz").read_bytes()
    assert data[3:8] == bytes(5)  # no file name, no time
    assert gzip.decompress(data).decode() == f">A1\n{GOOD}\n>A2 cluster=A1\n{GOOD[::-1]}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["A1"], []), "sequences=0, expected 1"),
        ((["A1"], [GOOD], []), "clusters=0, expected 1"),
        ((["A 1"], [GOOD]), "accession='A 1'"),
        (([""], [GOOD]), "accession=''"),
        ((["A1"], [GOOD + "\n"]), "sequence="),
        ((["A1"], [GOOD], ["B 2"]), "cluster='B 2'"),
    ],
)
def test_writes_nothing_that_cannot_be_read(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        write_fasta(tmp_path / "x.gz", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_tokens_are_those_of_esm():
    esm = pytest.importorskip("esm.tokenization")
    tokenizer = esm.EsmSequenceTokenizer()
    assert encode([AMINO_ACIDS])[0].tolist() == tokenizer.encode(AMINO_ACIDS)[1:-1] == list(range(4, 24))
    assert tokenizer.mask_token_id == MASK_ID


@given(st.integers(1, 60).flatmap(lambda n: st.lists(st.text(AMINO_ACIDS, min_size=n, max_size=n), min_size=1)))
def test_decoding_undoes_encoding(batch):
    tokens = encode(batch)
    assert tokens.dtype == torch.int64 and tokens.shape == (len(batch), len(batch[0]))
    assert tokens.tolist() == [[4 + AMINO_ACIDS.index(letter) for letter in sequence] for sequence in batch]
    assert decode_tokens(tokens) == batch
    tokens[:, 0] = MASK_ID
    assert decode_tokens(tokens) == ["_" + sequence[1:] for sequence in batch]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([], "sequences="),
        ("ACD", "expected a list of sequences"),
        (["AC", "ACD"], r"lengths=\[2, 3\], expected one length"),
        ([""], "lengths="),
        (["ACX", "A_C"], "letters='X_'"),
        (["acd"], "letters='acd'"),
        (["AÉ"], "letters='É'"),
    ],
)
def test_encode_refuses(batch, message):
    with pytest.raises(ValueError, match=message):
        encode(batch)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([[4, 3]]), r"tokens=\[3\], expected 4 to 23, or 32"),
        (torch.tensor([[24, 4]]), r"tokens=\[24\]"),
        (torch.tensor([4]), r"int64 of shape \(B, L\)"),
        (torch.tensor([[4.0]]), "int64"),
    ],
)
def test_decode_refuses(tokens, message):
    with pytest.raises(ValueError, match=message):
        decode_tokens(tokens)


def test_committed_sets_are_what_the_readme_says(sets):
    readme = (PROTEINS.parent / "README.md").read_text(encoding="utf-8")
    for name, proteins in sets.items():
        assert f"| `{name}.fasta.gz` | {len(proteins):,} |" in readme
        assert proteins.skipped == {}
        assert all(50 <= len(s) <= 100 and set(s) <= set("ACDEFGHIKLMNPQRSTVWY") for s in proteins.sequences)
    assert len(sets["reference"]) >= 1000 and len(sets["training"]) >= 12000 and len(sets["held_out"]) >= 200
    assert sum(path.stat().st_size for path in PROTEINS.iterdir()) < 3_000_000


def test_no_protein_is_in_two_sets(sets):
    for what in ("accessions", "sequences"):
        everything = [x for proteins in sets.values() for x in getattr(proteins, what)]
        assert len(everything) == len(set(everything))


def test_held_out_proteins_have_clusters_to_be_compared_with(sets):
    training = Counter(sets["training"].clusters)
    assert "" not in training and max(training.values()) <= 100
    assert set(sets["held_out"].clusters) <= training.keys()
    assert min(training[cluster] for cluster in sets["held_out"].clusters) >= 18
    assert set(sets["reference"].clusters) == {""}
    assert not set(training) & set(sets["reference"].accessions)  # a cluster is named by its representative


def test_sets_are_apart_by_plain_comparison(sets):
    """Proteins that share twelve residues, laid over each other there without gaps, agree no more than the bound."""
    for name, bound in (("reference", 0.5), ("held_out", 0.8)):
        seeds = defaultdict(list)
        for sequence in sets[name].sequences:
            for i in range(0, len(sequence) - 11, 6):
                seeds[sequence[i : i + 12]].append((sequence, i))
        worst = 0.0
        for other in sets["training"].sequences:
            for j in range(len(other) - 11):
                for sequence, i in seeds.get(other[j : j + 12], ()):
                    start = min(i, j)
                    a, b = sequence[i - start :], other[j - start :]
                    n = min(len(a), len(b))
                    if n >= 0.8 * max(len(sequence), len(other)):
                        worst = max(worst, sum(x == y for x, y in zip(a, b, strict=False)) / n)
        assert 0 < worst < bound + 0.02, name
