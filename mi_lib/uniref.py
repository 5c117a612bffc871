"""UniRef50 sequences from UniProt's REST service: one pool, fetched once and kept, from which samples are drawn."""

import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from urllib.parse import urlencode

import numpy as np

from mi_lib.artifacts import CACHE, read_json, sha256, write_json
from mi_lib.masked import require
from mi_lib.proteins import MAX_LENGTH, MIN_LENGTH, read_fasta, write_fasta

SERVICE = "https://rest.uniprot.org"
QUERY = f"identity:0.5 AND length:[{MIN_LENGTH} TO {MAX_LENGTH}]"
PAGE = 500  # clusters; the most the service gives at once
PAGES = 20  # about 2 MB
TRIES = 4  # of a page that does not arrive whole
ERRORS = (429, 500, 502, 503, 504)  # that pass
TIMEOUT = (5, 30)  # seconds to connect, and to wait for the next bytes

Progress = Callable[[int, int], None]


def fetch_uniref50(
    out: Path | str,
    n: int = 500,
    seed: int = 0,
    pages: int = PAGES,
    service: str = SERVICE,
    cache: Path | None = None,
    backoff: float = 1.0,
    progress: Progress | None = None,
) -> dict:
    """Draw ``n`` UniRef50 representatives of 50 to 100 residues and write them, with a record beside them.

    The service lists clusters by their identifier and knows no random order, so this samples the first ``pages`` of
    500, out of millions of clusters. They are kept: another ``n`` or ``seed`` needs no network.

    Parameters
    ----------
    out : path
        The FASTA file, named ``.fasta.gz``; the record's name ends in ``.json`` instead.
    n : int
    seed : int
        Decides which of the pool, and their order.
    pages : int
    service : str
        Base address of the service.
    cache : path, optional
        Where the pool is kept; in the cache folder by default.
    backoff : float
        Seconds before a request is repeated, doubled every time; the service's ``Retry-After`` goes before it.
    progress : callable, optional
        Called with the clusters fetched so far and all that are wanted.

    Returns
    -------
    dict
        The record: file, its SHA-256, n, seed, and of the pool: address, query, release, results, date, SHA-256.

    Raises
    ------
    ValueError
        If a number is out of range, the service refuses the query or answers with something else than FASTA, or the
        pool has too few sequences of the 20 amino acids.
    ConnectionError
        If the service cannot be reached, is overloaded, or cuts every connection.
    """
    out = Path(out)
    require(out.name.endswith(".fasta.gz"), "out", str(out), "a name that ends in .fasta.gz")
    require(1 <= pages <= 2000, "pages", pages, "1 to 2000")
    require(1 <= n <= pages * PAGE, "n", n, f"1 to {pages * PAGE} (pages={pages} of {PAGE})")
    require(seed >= 0, "seed", seed, "at least 0")
    path, facts = _pool(pages, service.rstrip("/"), Path(cache or CACHE / "uniref"), backoff, progress)
    found = read_fasta(path)
    if len(found) < n:
        raise ValueError(f"n={n}, but the pool has {len(found)} sequences (skipped: {found.skipped}); raise pages")
    chosen = np.random.default_rng(seed).choice(len(found), n, replace=False)
    write_fasta(out, [found.accessions[i] for i in chosen], [found.sequences[i] for i in chosen])
    record = {"file": out.name, "sha256": sha256(out), "n": n, "seed": seed, "skipped": found.skipped, "pool": facts}
    write_json(out.with_name(out.name.removesuffix(".fasta.gz") + ".json"), record)
    return record


def _pool(pages: int, service: str, cache: Path, backoff: float, progress: Progress | None) -> tuple[Path, dict]:
    """The pool's file and record; fetched unless both are there and fit."""
    import pooch

    url = f"{service}/uniref/search?{urlencode({'query': QUERY, 'format': 'fasta', 'size': PAGE})}"
    path, record = cache / f"uniref50_{pages}.fasta", cache / f"uniref50_{pages}.json"
    if path.is_file() and record.is_file():
        facts = read_json(record)
        if facts["url"] == url and facts["sha256"] == sha256(path):
            return path, facts
    path.unlink(missing_ok=True)
    facts = {"url": url, "query": QUERY}

    def download(url: str, file: str, _: object) -> None:
        text, said = _fetch(url, pages, backoff, progress or (lambda done, wanted: None))
        Path(file).write_text(text, encoding="utf-8")
        facts.update(said)

    pooch.get_logger().setLevel("WARNING")  # it would print the checksum, which is recorded
    pooch.retrieve(url, known_hash=None, fname=path.name, path=cache, downloader=download)
    facts |= {"sha256": sha256(path), "date": date.today().isoformat()}
    write_json(record, facts)
    return path, facts


def _fetch(url: str, pages: int, backoff: float, progress: Progress) -> tuple[str, dict]:
    """FASTA text of the first pages, each linked from the one before, and what the headers say of all."""
    texts, got, facts = [], 0, {}
    session = _session(backoff)
    for _ in range(pages):
        response = _page(session, url, got, backoff)
        said = {"release": response.headers.get("X-UniProt-Release"), "results": _results(response)}
        if facts and facts != said:
            raise ValueError(f"UniProt changed between two pages, from {facts} to {said}; try again")
        facts = said
        texts.append(response.text.strip() + "\n")
        got += _count(response)
        progress(got, min(pages * PAGE, said["results"]))
        url = response.links.get("next", {}).get("url")
        if url is None:
            break
    if got < min(pages * PAGE, facts["results"]):
        raise ConnectionError(f"UniProt gave {got} of {facts['results']} clusters and no further page; try again")
    return "".join(texts), facts


def _session(backoff: float):
    """A session that waits and tries again while the service is overloaded; no network at all is told at once."""
    import requests
    from requests.adapters import HTTPAdapter, Retry

    patience = {"status": 5, "read": 3, "connect": 0, "backoff_factor": backoff}
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=Retry(status_forcelist=ERRORS, **patience)))
    return session


def _page(session, url: str, got: int, backoff: float):
    """The answer to one request, whole; ``got`` clusters came before it."""
    from requests import exceptions

    for attempt in range(TRIES):
        if attempt:
            time.sleep(backoff * 2 ** (attempt - 1))
        try:
            response = session.get(url, timeout=TIMEOUT)
        except (exceptions.ChunkedEncodingError, exceptions.ContentDecodingError):
            continue  # cut in the middle of the answer
        except exceptions.RetryError:
            raise ConnectionError(f"UniProt kept answering with an error ({ERRORS}): {url}; try later") from None
        except (exceptions.ConnectionError, exceptions.Timeout) as error:
            if got:
                continue
            reason = f"{type(error).__name__}; it needs a network"
            raise ConnectionError(f"cannot reach {url.partition('/uniref')[0]} ({reason})") from None
        if not response.ok:
            raise ValueError(f"UniProt answered {response.status_code} to {url}: {response.text[:200]!r}")
        if not response.text.lstrip().startswith(">"):
            raise ValueError(f"UniProt's answer to {url} is not FASTA, it begins with {response.text[:40]!r}")
        if _count(response) >= min(PAGE, _results(response) - got):
            return response
    raise ConnectionError(f"the connection was cut {TRIES} times in a row: {url}; try again")


def _results(response) -> int:
    """How many clusters the query has, as the service says."""
    total = response.headers.get("X-Total-Results", "")
    if not total.isdigit():
        raise ValueError(f"UniProt's answer to {response.url} has X-Total-Results {total!r}, expected a number")
    return int(total)


def _count(response) -> int:
    return sum(line.startswith(">") for line in response.text.splitlines())
