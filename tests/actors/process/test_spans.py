import time

from squelch.actors.process.spans import Spans


def test_overlapping_work_is_one_span_and_an_open_one_is_cut_and_goes_on():
    spans = Spans()
    spans.begin()
    spans.begin()
    spans.end()
    assert spans._done == type(spans._done)()
    (first,) = spans.take()
    time.sleep(0.01)
    spans.end()
    (second,) = spans.take()
    assert first[0] <= first[1] == second[0] < second[1]
    assert spans.take() == []


def test_whole_intervals_are_kept_in_order():
    spans = Spans()
    spans.add(1.0, 2.0)
    spans.add(3.0, 4.0)
    assert spans.take() == [(1.0, 2.0), (3.0, 4.0)]
