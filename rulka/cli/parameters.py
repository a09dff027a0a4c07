"""Parameters of params.yaml: value, default, range and meaning of each."""

from __future__ import annotations

from pathlib import Path

from rulka.cli.options import AsJson, report, say
from rulka.stages.outputs import check_file, new_file


def list_(topic: str = "", /, changed: bool = False, as_json: AsJson = False) -> None:
    """List all parameters with value, default, type, range and meaning.

    Ends with an error if the values are impossible, after the list.

    Example: `rulka params list exploration --changed`

    Args:
        topic: a parameter, a section, or a word of names and meanings; if omitted, all.
        changed: only parameters that differ from their default.
        as_json: print one JSON list.
    """
    from rulka.params import PARAMS_FILE, checked_params, read_sections
    from rulka.params.schema import parameters_about

    sections = read_sections(PARAMS_FILE)
    found = [each for each in parameters_about(topic, sections) if each.is_changed or not changed]
    report([each._asdict() for each in found], lambda: "\n".join(map(str, found)), as_json)
    checked_params(sections, f"{PARAMS_FILE} is wrong")


def schema(out: Path = Path("params.schema.json")) -> None:
    """Write the JSON schema of params.yaml, for validation and hints in editors.

    Example: `rulka params schema --out params.schema.json`

    Args:
        out: JSON file to write.
    """
    from rulka.params import PARAMS_FILE
    from rulka.params.schema import schema_text

    with new_file(check_file(out, ".json")) as beside:
        beside.write_text(schema_text(), encoding="utf-8")
    say(f"{out}: with the line `# yaml-language-server: $schema={out}` in {PARAMS_FILE}, editors check and explain it")
