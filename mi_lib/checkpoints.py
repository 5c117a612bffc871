"""The models by name: MDMs, ESM-Cs and MI heads."""

from pathlib import Path

from mi_lib.artifacts import checkpoint_names, load_checkpoint, read_sidecar
from mi_lib.esmc import HUB_MODELS, ESMCModel, load_esmc
from mi_lib.head import HeadConfig, MIHead
from mi_lib.mdm import MDM, MDMConfig


def load_mdm(name: str, folder: Path | None = None) -> MDM:
    """A Sudoku MDM in float32 and evaluation mode; a ValueError says what is wrong with the name or the file."""
    return load_checkpoint(name, "mdm", lambda config: MDM(MDMConfig(**config)), folder)


def load_model(name: str, folder: Path | None = None) -> MDM | ESMCModel:
    """A masked model of either kind by name, in float32 and evaluation mode.

    Parameters
    ----------
    name : str
        A shipped MDM or ESM-C, or whatever else ``load_esmc`` takes: a name on the model hub, a file.
    folder : Path, optional
        Of the checkpoints.

    Raises
    ------
    ValueError
        If there is no such model, or it is damaged.
    ConnectionError
        If it has to be downloaded and the hub cannot be reached.
    """
    mdms, esmcs = checkpoint_names("mdm", folder), [*checkpoint_names("esmc", folder), *HUB_MODELS]
    if name in mdms:
        return load_mdm(name, folder)
    if name not in esmcs and Path(name).suffix not in (".pth", ".safetensors"):
        raise ValueError(f"model={name!r}, expected one of {[*mdms, *esmcs]}, or a .pth or .safetensors file")
    return load_esmc(name, folder=folder)


def load_head(name: str, model: str | None = None, folder: Path | None = None) -> MIHead:
    """An MI head in float32 and evaluation mode.

    Parameters
    ----------
    name : str
    model : str, optional
        Name of the masked model it will read; checked against the one it was trained for.
    folder : Path, optional

    Raises
    ------
    ValueError
        If the checkpoint is unknown, damaged, or belongs to another model.
    """
    trained_for = read_sidecar(name, "head", folder)["model"]
    if model is not None and trained_for != model:
        raise ValueError(f"head {name!r} was trained for {trained_for!r}, not for {model!r}")
    return load_checkpoint(name, "head", lambda config: MIHead(HeadConfig(**config)), folder)
