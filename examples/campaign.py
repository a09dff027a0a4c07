"""An agent, or a function of one's own, on the ten tracks of the campaign: what to report of it.

python examples/campaign.py latest
python examples/campaign.py mine:act --races 20
"""

from __future__ import annotations

import tyro

import rulka
from rulka.tracks.campaign_slugs import CAMPAIGN_SLUGS


def main(driver: str, /, races: int = 20, seed: int = 100) -> None:
    """Races on every track, and prints a table in Markdown.

    Args:
        driver: "latest", "promoted", the name or folder of an agent, or MODULE:FUNCTION.
        races: on each track.
        seed: of the first start on each.
    """
    chosen = driver if ":" in driver else rulka.load_agent(driver)
    print("| track | finished | 95 % interval | median s | x reference | lap share |", "|---" * 6 + "|", sep="\n")
    for slug in CAMPAIGN_SLUGS:
        score = rulka.evaluate(chosen, slug, num_races=races, seed=seed)
        low, high = score.finish_rate_interval
        finished = f"{slug} | {score.finish_rate:.0%} | {low:.0%} to {high:.0%}"
        numbers = f"{cell(score.median_time_s, 2)} | {cell(score.times_reference, 3)} | {cell(score.lap_share, 3)}"
        print(f"| {finished} | {numbers} |", flush=True)


def cell(number: float | None, digits: int) -> str:
    """Writes a number, or a dash where there is none."""
    return "-" if number is None else f"{number:.{digits}f}"


if __name__ == "__main__":
    tyro.cli(main)
