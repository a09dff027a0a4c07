"""The game's environment against the simulator's, over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded
from gymnasium.utils.env_checker import check_env

from rulka.contracts.observation import float_slices
from rulka.contracts.schedule import Schedule
from rulka.envs.game import GameEnv
from rulka.envs.race import RaceEnv
from rulka.game.errors import GameClosedError
from rulka.game.protocol import MessageId, pack_sync
from rulka.machine.errors import UserError
from rulka.params import read_params
from rulka.tracks.track import Track
from tests.game.processes import free_ports
from tests.game.serving import gentle_bend, served
from tests.waiting import PATIENCE_S

AT_THE_START = {"start_anywhere": 0.0, "start_lateral_m": 0.0, "start_heading_deg": 0.0}


class Servers:
    """Games in threads of their own, which can be stopped and started again at the same port."""

    def __init__(self, track: Track) -> None:
        self._track, self._running = track, dict[int, ExitStack]()

    def start(self, port: int = 0) -> int:
        running = ExitStack()
        port = running.enter_context(served(self._track, port=port)).port
        self._running[port] = running
        return port

    def stop(self, port: int) -> None:
        self._running.pop(port).close()

    def stop_all(self) -> None:
        for port in list(self._running):
            self.stop(port)


@pytest.fixture(scope="module")
def bend() -> Track:
    return gentle_bend()


@pytest.fixture
def servers(bend: Track) -> Iterator[Servers]:
    some = Servers(bend)
    yield some
    some.stop_all()


@pytest.fixture
def make_game(bend: Track, servers: Servers) -> Iterator[Callable[..., GameEnv]]:
    made: list[GameEnv] = []

    def make(**options) -> GameEnv:
        options = {"track": bend, "speed": 100.0, "timeout_s": PATIENCE_S, "patience_s": PATIENCE_S} | options
        options["port"] = options.get("port") or servers.start()
        env = gymnasium.make("rulka/Game-v0", disable_env_checker=True, **options)
        made.append(env.unwrapped)
        return made[-1]

    yield make
    for env in made:
        env.close()


def assert_same(game: tuple, simulated: tuple, num_places: int = 1, *, has_image: bool = True) -> None:
    """Compares an observation and its info.

    The game tells positions in single precision, in which the simulator does not compute. So the way along the track
    differs by some micrometres, and with it the margin and the progress; and a car exactly between two zones may count
    to the other one, which moves every waypoint by one.
    """
    (seen, info), (expected, expected_info) = game, simulated
    if has_image:
        np.testing.assert_array_equal(seen["image"], expected["image"])
    parts = float_slices(num_places)
    assert seen["floats"].shape == expected["floats"].shape
    for name, part in parts.items():
        if name not in ("waypoints", "margin"):
            np.testing.assert_array_equal(seen["floats"][part], expected["floats"][part], err_msg=name)
    for name in ("waypoints", "margin"):
        np.testing.assert_allclose(seen["floats"][parts[name]], expected["floats"][parts[name]], atol=1e-3)
    assert info.pop("is_crashed") is False
    assert info == pytest.approx(expected_info, abs=1e-3)
    assert info["time_ms"] == expected_info["time_ms"]


def drive_both(game: GameEnv, race: RaceEnv, actions: list) -> int:
    """Drives both to the end of a race; returns its time."""
    num_places = np.size(actions[0])
    assert_same(game.reset(), race.reset(seed=0), num_places)
    for number in range(400):
        action = actions[number % len(actions)]
        seen, reward, terminated, truncated, info = game.step(action)
        expected, expected_reward, *ends, expected_info = race.step(action)
        assert reward == pytest.approx(expected_reward, abs=1e-4)
        assert [terminated, truncated] == ends
        # At the finish the game sends no frame; the image is the one before.
        assert_same((seen, dict(info)), (expected, expected_info), num_places, has_image=not info["is_finished"])
        if terminated or truncated:
            return info["time_ms"]
    pytest.fail("the race did not end")


def test_a_race_in_the_game_is_that_of_the_simulator(make_game: Callable[..., GameEnv], bend: Track) -> None:
    game, race = make_game(), RaceEnv(bend, **AT_THE_START)
    first = drive_both(game, race, [0, 0, 1, 0, 2, 9, 0, 3])
    assert 4_000 < first < 20_000
    assert first % 50 != 0, "a time to the millisecond, not to the decision"
    assert drive_both(game, race, [0, 0, 1, 0, 2, 9, 0, 3]) == first, "a reset is a rewind"
    assert drive_both(game, race, [0]) < first


def test_repeated_actions_are_those_of_the_simulator(make_game: Callable[..., GameEnv], bend: Track) -> None:
    """Also what counts decisions of 50 ms: previous actions, and how long the gears have been shifting."""
    game, race = make_game(action_repeat=3), RaceEnv(bend, action_repeat=3, **AT_THE_START)
    assert game.metadata["render_fps"] == 7
    drive_both(game, race, [0, 9, 0, 3])


def test_blocks_and_all_rewards_are_those_of_the_simulator(make_game: Callable[..., GameEnv], bend: Track) -> None:
    """Every action of a block is held for its own 10 ms, in the game by a run step for each.

    Rewards and potentials of no weight in the reference parameters: only this test would see a wrong part of the floats
    read.
    """
    always = Schedule(interpolation="linear", points=((0, 0.25),))
    terms = dict.fromkeys(("speed_slide", "neo_slide", "kamikaze", "line_distance"), always)
    given = read_params().rewards
    changes = {"line_distance_potential": 0.1, "direction_potential": 0.5, "speed_as_seconds": 2.0}
    rewards = given.model_copy(update=changes | {"engineered": given.engineered.model_copy(update=terms)})
    options = {"rewards": rewards, "actions_per_decision": 5}
    game, race = make_game(**options), RaceEnv(bend, **options, **AT_THE_START)
    assert game.action_space == race.action_space
    assert game.observation_space == race.observation_space
    blocks = [np.array(block) for block in ([0, 0, 0, 0, 0], [0, 1, 0, 3, 0], [2, 0, 9, 0, 0], [0, 0, 0, 6, 1])]
    assert 4_000 < drive_both(game, race, blocks) < 20_000
    game.reset()
    for wrong in (3, [0, 1, 2, 3], [0, 0, 0, 0, 12], [0, 0, 0, 0, -1], [0.5] * 5):
        with pytest.raises(InvalidAction, match="5 times a whole number from 0 to 11"):
            game.step(wrong)


def test_longer_actions_of_a_block_take_several_run_steps(make_game: Callable[..., GameEnv], bend: Track) -> None:
    """Actions of 10, 20 and 20 ms."""
    options = {"actions_per_decision": [0, 10, 30]}
    game, race = make_game(**options), RaceEnv(bend, **options, **AT_THE_START)
    blocks = [np.array(block) for block in ([0, 0, 0], [1, 0, 3], [2, 9, 0], [6, 0, 1], [0, 0, 2])]
    assert 4_000 < drive_both(game, race, blocks) < 20_000


def test_a_race_is_cut_as_in_the_simulator_and_a_reset_in_mid_race_begins_anew(make_game, bend: Track) -> None:
    limits = {"no_progress_s": 1.0}
    game, race = make_game(**limits), RaceEnv(bend, **AT_THE_START, **limits)
    game.reset()
    for _ in range(15):
        game.step(1)
    assert drive_both(game, race, [3]) == 1_000


def test_a_car_off_the_track_ends_its_race_in_the_same_decision(make_game: Callable[..., GameEnv], bend: Track) -> None:
    """Clock and reward of that decision differ: the game does not tell at which tick the car left the track."""
    game, race = make_game(), RaceEnv(bend, **AT_THE_START)
    game.reset()
    race.reset(seed=0)
    for number in range(400):
        action = 0 if number < 40 else 1
        _, reward, *ends, info = game.step(action)
        _, expected, *expected_ends, expected_info = race.step(action)
        assert ends == expected_ends
        if any(ends):
            break
        assert reward == pytest.approx(expected, abs=1e-4)
    assert info["is_off_track"]
    assert expected_info["is_off_track"]
    assert abs(info["time_ms"] - expected_info["time_ms"]) < 50
    assert reward == pytest.approx(expected, abs=0.021)


@pytest.mark.filterwarnings("ignore:.*render_modes.*")
def test_gymnasium_accepts_it(make_game: Callable[..., GameEnv]) -> None:
    """And another one at the same game when this one has handed it back; before, it would wait for its turn."""
    game = make_game(render_mode="rgb_array")
    check_env(game, skip_render_check=True, skip_close_check=True)
    game.close()
    assert game.spec is not None
    other = game.spec.make()
    for _ in range(2):
        other.close()


def test_a_game_that_does_not_come_back_is_an_error(make_game: Callable[..., GameEnv], servers: Servers) -> None:
    port = servers.start(free_ports(1))
    game = make_game(port=port, patience_s=0.2)
    game.reset()
    servers.stop(port)
    game.step(0)
    with pytest.raises(GameClosedError, match=str(port)):
        game.reset()


def test_a_lost_connection_ends_the_race_and_a_game_that_dies_again_while_it_comes_back_is_waited_for(
    make_game: Callable[..., GameEnv], servers: Servers, bend: Track
) -> None:
    port = servers.start(free_ports(1))
    game = make_game(port=port)
    game.reset()
    for _ in range(10):
        last, *_ = game.step(0)
    servers.stop(port)
    seen, reward, terminated, truncated, info = game.step(0)
    assert (reward, terminated, truncated, info["is_crashed"], info["is_finished"]) == (0.0, False, True, True, False)
    np.testing.assert_array_equal(seen["image"], last["image"])
    with pytest.raises(ResetNeeded):
        game.step(0)
    listener = socket.create_server(("127.0.0.1", port))

    def greet_and_die() -> None:
        with listener, listener.accept()[0] as connection:
            listener.close()
            connection.sendall(pack_sync(MessageId.ON_CONNECT))
            connection.settimeout(0.3)
            with suppress(TimeoutError):  # until the greeting is answered, and the program waits for its race
                while connection.recv(4096):
                    pass
        servers.start(port)

    dying = threading.Thread(target=greet_and_die, daemon=True)
    dying.start()
    drive_both(game, RaceEnv(bend, **AT_THE_START), [0])
    dying.join(PATIENCE_S)
    assert not dying.is_alive()
    servers.stop(port)  # between two races
    servers.start(port)
    game.reset()
    assert not game.step(0)[4]["is_crashed"]


def test_what_a_game_cannot_do_is_refused(make_game: Callable[..., GameEnv]) -> None:
    game = make_game()
    game.reset()
    for action in (12, -1, 0.5, [0]):
        with pytest.raises(InvalidAction):
            game.step(action)
    game.close()
    with pytest.raises(ClosedEnvironmentError):
        game.reset()
    with pytest.raises(UserError, match="start_anywhere"):
        GameEnv(port=1, start_anywhere=0.5)
