"""What Rulka adds to the protocol. Its bytes are those that `test_client` and `test_server` write out again."""

from rulka.game import protocol


def test_the_version_is_a_comment_before_the_script() -> None:
    assert protocol.read_version(protocol.version_line() + "0 press up\n") == protocol.VERSION
    assert protocol.read_version("# rulka link 12\n") == 12
    for other in ("0 press up\n# rulka link 1\n", "# rulka link x\n", "# rulka link \u00b2\n", ""):
        assert protocol.read_version(other) is None
