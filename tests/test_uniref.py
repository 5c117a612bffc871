"""UniRef50, from a server on this machine that answers as UniProt's does: pages, 429, 503, cut connections, garbage."""

import hashlib
import json
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from mi_lib.proteins import AMINO_ACIDS, load_proteins
from mi_lib.uniref import fetch_uniref50


def fasta(number):
    """One cluster of UniRef50; every fiftieth has a letter that is no amino acid."""
    draw = random.Random(number)
    sequence = "".join(draw.choices(AMINO_ACIDS, k=draw.randint(50, 100)))
    if number % 50 == 49:
        sequence = "X" + sequence[1:]
    title = f"UniRef50_A0A{number:06} Protein n=1 Tax=Bacillus sp. TaxID=1409 RepID=A0A{number:06}_9BACI"
    wrapped = "\n".join(sequence[i : i + 60] for i in range(0, len(sequence), 60))
    return f">{title}\n{wrapped}\n"


class Service:
    """``faults`` maps the number of a request (from 0) to what goes wrong with it."""

    def __init__(self, clusters):
        self.clusters, self.faults, self.requests = clusters, {}, []
        self.releases = {}
        service = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                service.answer(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, handler):
        number = len(self.requests)
        self.requests.append((time.monotonic(), handler.path))
        fault = self.faults.get(number, self.faults.get("always"))
        parts = urlsplit(handler.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if isinstance(fault, tuple):
            status, headers, body = fault
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
            return
        if fault == "hang up":
            handler.close_connection = True
            handler.connection.close()
            return
        assert parts.path == "/uniref/search" and asked["format"] == "fasta"
        assert asked["query"] == "identity:0.5 AND length:[50 TO 100]"
        start, size = int(asked.get("cursor", "c0")[1:]), int(asked["size"])
        stop = min(start + size, self.clusters)
        body = "".join(fasta(i) for i in range(start, stop)).encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "text/plain;format=fasta")
        handler.send_header("X-Total-Results", str(self.clusters))
        handler.send_header("X-UniProt-Release", self.releases.get(number, "2026_03"))
        if stop < self.clusters and fault != "no link":
            query = parts.query.split("&cursor")[0]
            handler.send_header("Link", f'<{self.url}/uniref/search?{query}&cursor=c{stop}>; rel="next"')
        if fault != "cut silently":
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: len(body) // 2] if fault in ("cut", "cut silently") else body)


@pytest.fixture
def service():
    service = Service(clusters=1234)
    yield service
    service.server.shutdown()
    service.server.server_close()


@pytest.fixture
def fetch(service, tmp_path):
    def fetch(name="x.fasta.gz", **arguments):
        options = {"service": service.url, "cache": tmp_path / "cache", "backoff": 0.01, **arguments}
        return fetch_uniref50(tmp_path / name, **options)

    return fetch


EXPECTED = {f"UniRef50_A0A{i:06}": "".join(fasta(i).splitlines()[1:]) for i in range(1234) if i % 50 != 49}


def test_samples_all_pages_and_records_what_it_did(fetch, service, tmp_path):
    seen = []
    record = fetch(n=400, seed=3, progress=lambda *done: seen.append(done))
    found = load_proteins(tmp_path / "x.fasta.gz")
    assert len(found) == len(set(found.accessions)) == 400
    assert all(EXPECTED[a] == s for a, s in zip(found.accessions, found.sequences, strict=True))
    numbers = [int(a[-6:]) for a in found.accessions]
    for low, high in ((0, 500), (500, 1000), (1000, 1234)):
        share = sum(low <= i < high for i in numbers) / 400
        assert abs(share - (high - low) / 1234) < 0.1  # four standard errors
    assert numbers != sorted(numbers)
    assert seen == [(500, 1234), (1000, 1234), (1234, 1234)]
    assert json.loads((tmp_path / "x.json").read_text()) == record
    assert record["sha256"] == hashlib.sha256((tmp_path / "x.fasta.gz").read_bytes()).hexdigest()
    assert (record["file"], record["n"], record["seed"]) == ("x.fasta.gz", 400, 3)
    pool = record["pool"]
    assert pool["query"] == "identity:0.5 AND length:[50 TO 100]" and pool["url"].startswith(service.url)
    assert (pool["release"], pool["results"]) == ("2026_03", 1234)
    text = (tmp_path / "cache" / "uniref50_20.fasta").read_bytes()
    assert pool["sha256"] == hashlib.sha256(text).hexdigest()
    assert text.decode() == "".join(map(fasta, range(1234)))
    assert record["skipped"] == {"letters other than the 20 amino acids": 24}


def test_another_sample_of_the_same_pool_needs_no_network(fetch, service, tmp_path):
    fetch("a.fasta.gz", n=300)
    service.faults["always"] = (500, {}, b"")
    asked = len(service.requests)
    fetch("b.fasta.gz", n=300)
    fetch("c.fasta.gz", n=300, seed=1)
    assert len(service.requests) == asked == 3
    files = [(tmp_path / f"{name}.fasta.gz").read_bytes() for name in "abc"]
    assert files[0] == files[1] != files[2]


@pytest.mark.parametrize("name", ["uniref50_20.fasta", "uniref50_20.json"])
def test_a_changed_pool_is_fetched_again(name, fetch, service, tmp_path):
    first = fetch()
    path = tmp_path / "cache" / name
    if path.suffix == ".fasta":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        path.unlink()
    assert fetch() == first
    assert len(service.requests) == 6


def test_fewer_pages_are_the_first(fetch, service, tmp_path):
    record = fetch(n=450, pages=1)
    assert len(service.requests) == 1 and record["pool"]["results"] == 1234
    assert max(load_proteins(tmp_path / "x.fasta.gz").accessions) < "UniRef50_A0A000500"


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    "fault", [(503, {}, b"busy"), (429, {"Retry-After": "0"}, b""), "cut", "cut silently", "hang up"], ids=str
)
def test_trouble_that_passes_changes_nothing(fault, number, fetch, service, tmp_path):
    service.faults[number] = fault
    fetch(n=400, seed=3)
    assert len(service.requests) == 4
    assert (tmp_path / "cache" / "uniref50_20.fasta").read_text() == "".join(map(fasta, range(1234)))


def test_waits_as_long_as_the_service_asks(fetch, service):
    service.faults[1] = (429, {"Retry-After": "1"}, b"slow down")
    fetch()
    times = [when for when, _ in service.requests]
    assert times[2] - times[1] >= 1
    assert service.requests[1][1] == service.requests[2][1]


def nothing_is_left(tmp_path):
    return [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("faults", "error", "message"),
    [
        ({"always": (503, {}, b"")}, ConnectionError, "kept answering with an error"),
        ({"always": (429, {"Retry-After": "0"}, b"")}, ConnectionError, "kept answering with an error"),
        ({"always": "cut"}, ConnectionError, "cut 4 times in a row"),
        ({"always": "hang up"}, ConnectionError, "cannot reach http://127.0.0.1"),
        ({1: "no link"}, ConnectionError, "gave 1000 of 1234 clusters and no further page"),
        ({0: (400, {}, b'{"messages":["bad query"]}')}, ValueError, "answered 400 to .*bad query"),
        ({1: (404, {}, b"gone")}, ValueError, "answered 404"),
        ({2: (200, {}, b"<!doctype html><title>Sign in</title>")}, ValueError, "is not FASTA, it begins with '<!doc"),
        ({0: (200, {"X-Total-Results": "0"}, b"")}, ValueError, "is not FASTA, it begins with ''"),
        ({0: (200, {}, b">A\nACD\n")}, ValueError, "X-Total-Results '', expected a number"),
    ],
)
def test_trouble_that_stays_is_one_message_and_no_file(faults, error, message, fetch, service, tmp_path):
    service.faults = faults
    with pytest.raises(error, match=message):
        fetch()
    assert nothing_is_left(tmp_path)


def test_a_release_in_between_is_noticed(fetch, service, tmp_path):
    service.releases[2] = "2026_04"
    with pytest.raises(ValueError, match=r"changed between two pages.*2026_03.*2026_04"):
        fetch()
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, r"n=0, expected 1 to 10000 \(pages=20 of 500\)"),
        ({"n": 501, "pages": 1}, "n=501, expected 1 to 500"),
        ({"seed": -1}, "seed=-1, expected at least 0"),
        ({"pages": 0}, "pages=0"),
        ({"name": "x.fasta"}, "x.fasta', expected a name that ends in .fasta.gz"),
    ],
)
def test_numbers_are_checked_before_the_network(arguments, message, fetch, service, tmp_path):
    with pytest.raises(ValueError, match=message):
        fetch(**arguments)
    assert service.requests == [] and nothing_is_left(tmp_path)


def test_too_small_a_pool_says_so(fetch, tmp_path):
    with pytest.raises(ValueError, match=r"n=1230, but the pool has 1210 sequences \(skipped: {'letters.*': 24}\)"):
        fetch(n=1230)
    assert not (tmp_path / "x.fasta.gz").exists()


def test_no_network_is_told_within_seconds(fetch, service, tmp_path):
    service.server.shutdown()
    service.server.server_close()
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=r"cannot reach http://127.0.0.1:\d+ .*needs a network") as caught:
        fetch(backoff=1.0)
    assert time.monotonic() - start < 5
    assert "\n" not in str(caught.value) and nothing_is_left(tmp_path)
