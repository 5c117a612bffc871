"""The README files show what is recorded."""

import pytest

from mi_lib.readme import documents, fill


def test_readmes_show_the_recorded_results():
    for path, content in documents().items():
        assert path.read_text(encoding="utf-8") == content, f"{path.name} is stale: run python -m mi_lib.readme"


def test_fill_replaces_between_the_comments():
    assert (
        fill("a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb", "x", "new") == "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb"
    )
    with pytest.raises(ValueError, match="y:begin"):
        fill("<!-- x:begin -->\n<!-- x:end -->", "y", "new")
