"""Plots as inline SVG: counts of each second as stacked areas or bars, with a mark at each fault. Needs no other file or host."""
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 900, 190, 46, 22, 26
COLOURS = ["#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#6cc5b0", "#9c6b4e", "#9498a0", "#ff8ab7", "#97bbf5"]


def _top(limit):
    """A round number at or above it, for the axis."""
    unit = 1
    while unit * 10 < limit:
        unit *= 10
    return next(step * unit for step in (1, 2, 5, 10) if step * unit >= limit)


class Plot:
    """One drawing: seconds to the right, counts upwards."""

    def __init__(self, title, seconds, limit):
        self.title, self.seconds, self.limit = title, max(seconds, 1), _top(max(limit, 1))
        self.parts = []

    def x(self, second):
        return LEFT + second * (WIDTH - LEFT - 10) / self.seconds

    def y(self, count):
        return HEIGHT - BOTTOM - count * (HEIGHT - BOTTOM - TOP) / self.limit

    def text(self, x, y, words, anchor="start", css=""):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}">{escape(str(words))}</text>')

    def axes(self):
        for share in (0, 0.5, 1):
            y = self.y(self.limit * share)
            self.parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
            self.text(LEFT - 6, y + 4, f"{self.limit * share:g}", "end")
        step = next(step for step in (1, 2, 5, 10, 20, 60, 120, 300) if self.seconds / step <= 15)
        for second in range(0, int(self.seconds) + 1, step):
            self.text(self.x(second), HEIGHT - 6, f"{second} s", "middle")

    def bars(self, series):
        """Stacked: {name: [count of each second]}, the first name lowest."""
        width = max(1.0, self.x(1) - self.x(0) - 0.5)
        for second in range(int(self.seconds)):
            base = 0
            for number, (name, counts) in enumerate(series.items()):
                count = counts[second] if second < len(counts) else 0
                if not count:
                    continue
                y, bottom = self.y(base + count), self.y(base)
                self.parts.append(f'<rect x="{self.x(second):.1f}" y="{y:.1f}" width="{width:.1f}" height="{bottom - y:.1f}"'
                                  f' fill="{COLOURS[number % len(COLOURS)]}"><title>{escape(name)}: {count} in second {second}'
                                  "</title></rect>")
                base += count

    def marks(self, faults):
        for number, (at, name) in enumerate(faults):
            x = self.x(at)
            self.parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{HEIGHT - BOTTOM}" class="fault">'
                              f"<title>{escape(name)} at {at:.1f} s</title></line>")
            self.text(x, TOP - 11, number + 1, "middle", "mark")

    def svg(self):
        return (f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">' + "".join(self.parts)
                + "</svg>")


def legend(series):
    return "".join(f'<span class="key"><i style="background:{COLOURS[number % len(COLOURS)]}"></i>{escape(name)}'
                   f" ({sum(counts):,})</span>" for number, (name, counts) in enumerate(series.items()))


def stacked(title, series, faults):
    """A figure: title, plot, legend with the sums."""
    seconds = max([len(counts) for counts in series.values()], default=1)
    totals = [sum(column) for column in zip(*series.values())] or [0]
    plot = Plot(title, seconds, max(totals))
    plot.axes()
    plot.bars(series)
    plot.marks(faults)
    none = "" if series else " – none"
    return f"<figure><figcaption>{escape(title)}{none}</figcaption>{plot.svg()}<div>{legend(series)}</div></figure>"
