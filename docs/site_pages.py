"""Called by MkDocs while it builds the site: adds the page of parameters, and their JSON schema for editors.

Both come of the typed sections of parameters; neither is a file of the repository. The page of each algorithm of the
registry, and those that `rulka experiment` wrote, get into the navigation by themselves.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rulka.agents.params import ALGORITHMS
from rulka.params import PARAMS_FILE, Params
from rulka.params.schema import SCHEMA_FILE, Parameter, parameters, schema_text

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ABOUT = f"""# Parameters

Every parameter has a default in the code. `{PARAMS_FILE}` shows what people turn, as it comes; another parameter is set
by adding its key below its section. A key that is not known, another type or a number out of its range is an error that
names it. Keys without a default have to be set where their section is. Of sections of several kinds, the kind stands in
brackets. A schedule is a mapping with `interpolation` and `points` or `shares`, see
`rulka/contracts/schedule.py`; a plain number stands for one that does not change. What parameters make impossible
together is not here: `rulka doctor` says it.

The same in a terminal, with the values of this folder: `rulka params list [KEY or WORD]`; with `--changed`, only what
differs from its default. For completion and checks in an editor that knows YAML schemas (VS Code with the YAML
extension, Neovim, JetBrains): `rulka params schema` writes
[{SCHEMA_FILE}]({SCHEMA_FILE}), and the first line of `{PARAMS_FILE}` points to it:

```yaml
# yaml-language-server: $schema={SCHEMA_FILE}
```
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the pages of algorithms and of experiments to the navigation."""
    assert config.nav is not None
    sections = {name: pages for entry in config.nav if isinstance(entry, dict) for name, pages in entry.items()}
    sections["Algorithms"][1:1] = algorithm_pages()
    sections["Experiments"].extend(experiment_pages())
    return config


def algorithm_pages() -> list[dict[str, str]]:
    """Returns the page of every algorithm of the registry, as the navigation names it."""
    return [{section.LABEL: f"algorithms/{name}.md"} for name, section in ALGORITHMS.items()]


def experiment_pages() -> list[str]:
    """Returns the pages in `docs/experiments/`, as the navigation names them."""
    docs = Path(__file__).parent
    return sorted(path.relative_to(docs).as_posix() for path in (docs / "experiments").glob("*.md"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated files to those of the site."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "parameters.md", content=page()))
    files.append(File.generated(config, SCHEMA_FILE.as_posix(), content=schema_text()))
    return files


def page() -> str:
    """Returns the page of parameters as Markdown."""
    shipped = parameters({})
    parts = [ABOUT]
    for section, of_section in groupby(shipped, key=lambda each: each.key.partition(".")[0]):
        rows = [_row(each) for each in of_section if each.key != section or each.range]
        about = Params.model_fields[section].description
        header = "| parameter | type | range | default | what it is |\n|---|---|---|---|---|"
        parts.append("\n".join([f"## {section}\n", f"{about}\n", header, *rows, ""]))
    return "\n".join(parts)


def _row(parameter: Parameter) -> str:
    kind = f" ({parameter.kind})" if parameter.kind else ""
    value = "" if parameter.default is None else f"`{parameter.default}`"
    cells = (f"`{parameter.key}`{kind}", parameter.type, parameter.range, value, parameter.description)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('<', '&lt;') for cell in cells)} |"
