"""The verbs of ``mi data``: proteins that are rebuilt from a package, or fetched from a service."""

from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm
from typer import Option

data = typer.Typer(no_args_is_help=True, help="Make protein data files.")


@data.command()
def proteins(
    from_debian: Annotated[Path, Option(help="Where Debian's metastudent-data was unpacked (dpkg-deb -x).")],
    folder: Annotated[Path | None, Option(help="Where the files go; data/proteins by default.")] = None,
):
    """Write the reference, training and held-out proteins again, from the committed list of accessions."""
    from mi_lib.proteins import PROTEINS
    from mi_lib.swissprot import rebuild

    folder = folder or PROTEINS
    for name, n in rebuild(from_debian, folder).items():
        typer.echo(f"wrote {folder / name}.fasta.gz, {n} proteins")


@data.command()
def uniref50(
    n: Annotated[int, Option(help="Sequences to draw.")] = 500,
    seed: Annotated[int, Option(help="Decides which.")] = 0,
    out: Annotated[Path, Option(help="The file; a record goes beside it.")] = Path("uniref50.fasta.gz"),
    pages: Annotated[int, Option(help="Pages of 500 clusters to draw from; fetched once and kept.")] = 20,
    service: Annotated[str, Option(help="Base address of UniProt's REST service.")] = "https://rest.uniprot.org",
):
    """Fetch UniRef50 sequences of 50 to 100 residues from UniProt; the file serves as ``reference`` of a notebook."""
    from mi_lib.uniref import fetch_uniref50

    with tqdm(unit="cluster", delay=1) as bar:

        def progress(done: int, wanted: int) -> None:
            bar.total = wanted
            bar.update(done - bar.n)

        record = fetch_uniref50(out, n, seed, pages, service, progress=progress)
    typer.echo(f"wrote {out}, {n} sequences of UniRef50, release {record['pool']['release']}")
