import numpy as np

from rulka.game.frames import bgra_from_grey, grey_from_bgra


def test_grey_goes_there_and_back_to_the_bit() -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(8, 32)
    pixels, back = np.empty(256, "<u4"), np.empty_like(grey)
    bgra_from_grey(grey, pixels)
    assert pixels.tobytes()[4:8] == b"\x01\x01\x01\xff"
    grey_from_bgra(pixels.view(np.uint8).reshape(8, 32, 4), back)
    np.testing.assert_array_equal(back, grey)


def test_colours_count_by_how_bright_they_look() -> None:
    """256 * (29 blue, 150 green, 77 red) / 256, in the byte order blue, green, red; rounded down."""
    pixels = np.array([[[255, 0, 0, 9], [0, 255, 0, 9], [0, 0, 255, 9], [255, 255, 255, 9]]], np.uint8)
    grey = np.empty((1, 4), np.uint8)
    grey_from_bgra(pixels, grey)
    assert grey.tolist() == [[255 * 29 // 256, 255 * 150 // 256, 255 * 77 // 256, 255]]
