from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from rulka.recordings.input_script import InputScriptError, read_comments, read_script, write_script


def test_scripts_by_hand() -> None:
    text = "# uid: A\n0.00-0.04 press up # go\n0.02-0.03 press left\n0.03-0.05 press down\n"
    expected = [[0, 1, 0], [0, 1, 0], [-1, 1, 0], [0, 1, 1], [0, 0, 1]]
    np.testing.assert_array_equal(read_script(text), np.array(expected, np.float32))
    np.testing.assert_array_equal(read_script(text, 7)[5:], [[0, 0, 0], [0, 0, 0]])
    assert read_comments(text) == ["uid: A"]
    controls = read_script("0.01 steer -32768\n0.00-0.02 press up\n0.03 steer 0\n", 4)
    np.testing.assert_array_equal(controls, np.array([[0, 1, 0], [-0.5, 1, 0], [-0.5, 0, 0], [0, 0, 0]], np.float32))
    assert read_script("0.01 steer 0\n0.00 steer 65536\n", 1)[0, 0] == 1.0
    assert read_script("0.00 steer 65536\n0.00 steer 0\n", 1)[0, 0] == 0.0
    assert read_script("0.00 steer 0\n0.00 steer 65536\n", 1)[0, 0] == 1.0
    controls = np.array([[0, 1, 0], [1, 1, 0], [1, 1, 1]], np.float32)
    assert (
        write_script(controls, ("hello",))
        == "# hello\n0.00-0.03 press up\n0.01-0.03 press right\n0.02-0.03 press down\n"
    )


def test_reads_back_equal():
    for seed, is_analog in product(range(5), (False, True)):
        generator = np.random.default_rng(seed)
        controls = np.repeat(generator.integers(0, 2, (40, 3)), 3, axis=0).astype(np.float32)
        steer = generator.integers(-65536, 65537, 40) / 65536 if is_analog else generator.integers(-1, 2, 40)
        controls[:, 0] = np.repeat(steer, 3)
        np.testing.assert_array_equal(read_script(write_script(controls), len(controls)), controls)


BAD_LINES = """0.005 press up|15 press up|0.10 press up|0.10 gas 65536|3600.00-3600.02 press up|press up|
0.10 press enter|0.10 steer 65537|0.10 steer x|0.10 steer 99999999|0.20-0.10 press up|0.10-0.20 rel up|-0.10 press up|
0.10 set speed 10|\u0660.\u0661\u0660 press up"""


def test_bad_lines_and_controls_are_named() -> None:
    for line in (*BAD_LINES.replace("\n", "").split("|"), "9" * 5000 + " press up"):
        with pytest.raises(InputScriptError, match="line 2:"):
            read_script(f"0.00-0.01 press up\n{line}\n")
    for row in ([2.0, 0, 0], [np.nan, 0, 0], [0, 0.5, 0]):
        with pytest.raises(InputScriptError):
            write_script(np.array([row]))
    with pytest.raises(InputScriptError, match="one line"):
        write_script(np.zeros((1, 3)), ("a\n0.00 press up",))
