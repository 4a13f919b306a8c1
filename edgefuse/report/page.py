"""The frame of every HTML page: its head, its style, a policy that forbids requests and scripts."""

from __future__ import annotations

from functools import cache
from importlib import resources
from string import Template

from edgefuse.report.cells import text

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>$title</title>
<style>
$style</style>
</head>
<body>
<main>
$body</main>
</body>
</html>
""")


@cache
def _style() -> str:
    return resources.files("edgefuse.report").joinpath("style.css").read_text(encoding="utf-8")


def page(title: str, body: str) -> str:
    """A self-contained page; ``body`` is HTML, ``title`` plain text."""
    return _PAGE.substitute(title=text(title), style=_style(), body=body)
