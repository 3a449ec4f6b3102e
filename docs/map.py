"""Draw the map of rooms: `python docs/map.py` writes nbs/images/rooms.svg."""

from itertools import groupby
from pathlib import Path

from rooms import ABOUT, SYSTEMS

FILE = Path(__file__).resolve().parent.parent / "nbs" / "images" / "rooms.svg"
# The longest line fits in DejaVu, the widest of the fonts below.
WIDTH, LEFT, LABEL, HIGH, GAP = 500, 12, 140, 32, 14
STYLE = """
  text { font: 13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #3d4852 }
  .name { font-weight: 600; fill: #16283c }
  .ground { fill: #f7f9fb }
  .room { fill: #dce8f4; stroke: #24476b }
  .system { fill: #f8dfd0; stroke: #b4532a }
  .arrow { fill: none; stroke: #5b6b7b; stroke-width: 1.5 }
"""


def box(name: str, x: float, y: float, width: float, height: float) -> str:
    "A room's frame"
    return (
        f'<rect class="{"system" if name in SYSTEMS else "room"}" x="{x:g}" y="{y:g}" '
        f'width="{width:g}" height="{height:g}" rx="6"/>'
    )


def text(words: str, x: float, y: float, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{more}>{words}</text>'


def floor(names: list[str], y: float) -> list[str]:
    "One floor: a room with its line, or the systems side by side"
    if len(names) == 1:
        return [
            box(names[0], LEFT, y, WIDTH - 2 * LEFT, HIGH),
            text(names[0], 22, y + 21, ' class="name"'),
            text(ABOUT[names[0]], LABEL, y + 21),
        ]
    step = (WIDTH - 2 * LEFT + 6) / len(names)
    boxes = []
    for i, name in enumerate(names):
        x, middle = LEFT + i * step, ' text-anchor="middle"'
        boxes += [
            box(name, x, y, step - 6, HIGH + 14),
            text(
                name, x + step / 2 - 3, y + 20, middle + ' class="name" style="font-size: 11.5px"'
            ),
            text(ABOUT[name], x + step / 2 - 3, y + 37, middle + ' style="font-size: 11px"'),
        ]
    return boxes


def drawing() -> str:
    "The map as SVG, on a light ground of its own so that it can be read on a dark page"
    floors = [
        list(names)
        for _, names in groupby(reversed(ABOUT), key=lambda name: name in SYSTEMS or name)
    ]
    shapes, y = [], LEFT
    for names in floors:
        if shapes:
            shapes.append(
                f'<path class="arrow" d="M{WIDTH / 2:g} {y - GAP + 1} v{GAP - 3} m-4 -5 '
                'l4 4.5 l4 -4.5"/>'
            )
        shapes += floor(names[::-1] if len(names) > 1 else names, y)
        y += HIGH + GAP + (14 if len(names) > 1 else 0)
    shapes.append(
        text(
            "A room uses only rooms below it; systems never each other.",
            LEFT + 2,
            y + 8,
            ' style="font-size: 12px"',
        )
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 21}" '
        f'width="{WIDTH}" height="{y + 21}" role="img">'
    )
    title = (
        "<title>Map of the rooms: commands on top, core at the bottom, five systems side "
        "by side</title>"
    )
    return (
        "\n".join(
            [
                head,
                title,
                f"<style>{STYLE}</style>",
                f'<rect class="ground" width="{WIDTH}" height="{y + 21}" rx="10"/>',
                *shapes,
                "</svg>",
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    FILE.write_text(drawing(), "utf-8")
