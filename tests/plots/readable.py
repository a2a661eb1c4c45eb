"""Whether a figure can be read: sizes of texts, and that none lies on another or outside."""

from itertools import combinations

from matplotlib.text import Text

from g10sim.plots import style


def shown_texts(figure):
    """Every text that can be seen, ticks outside of their axes left out."""
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            unseen = {
                label
                for tick in ticks
                for label in (tick.label1, tick.label2)
                if not tick.get_visible() or not axes.axison or not low <= tick.get_loc() <= high
            }
            found = [text for text in found if text not in unseen]
    return found


def legend_words(figure):
    """Texts of the legends of a figure in reading order: row by row."""
    with style.settings():
        figure.draw_without_rendering()
    boxes = [
        (text.get_window_extent(), text.get_text())
        for legend in figure.legends
        for text in legend.get_texts()
    ]
    return [text for box, text in sorted(boxes, key=lambda pair: (-round(pair[0].y0), pair[0].x0))]


def assert_readable(figure):
    with style.settings():
        figure.draw_without_rendering()
    assert figure.get_figwidth() == style.COLUMN_INCHES
    assert figure.get_figheight() <= style.PAGE_INCHES
    texts = shown_texts(figure)
    boxes = [(text.get_text(), text.get_window_extent().padded(-0.5)) for text in texts]
    assert min(text.get_fontsize() for text in texts) >= 5.5
    for (text, box), (other, beside) in combinations(boxes, 2):
        assert not box.overlaps(beside), f"{text!r} lies on {other!r}"
    page = figure.bbox.padded(1)
    outside = [text for text, box in boxes if not (page.contains(*box.min) and page.contains(*box.max))]
    assert outside == []
