"""The filter service passes lists through."""

from squelch.actors.filter.service import FilterService
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.windows import FilterWindow
from tests.kit.filter.summaries import summary


def test_the_service_decides_as_the_window_does() -> None:
    config, groups = FilterConfig(rho=1.0), [summary([1, 0, 0, 1])]
    one, window = FilterService(config), FilterWindow(config)
    one.admit(groups)
    window.admit(groups[0])
    state = one.state()
    assert state == window.state()
    decided, after = one.close(3)
    assert decided.decisions == window.close(3).decisions and after == window.state()


def test_the_service_takes_up_a_checkpoint() -> None:
    config, groups = FilterConfig(window="sliding"), [summary([1, 0, 0, 1])]
    first, second = FilterService(config), FilterService(config)
    first.admit(groups)
    second.restore(first.state())
    decisions = second.close(3)[0].decisions
    assert decisions == first.close(3)[0].decisions and [one.decision for one in decisions] == ["kept"]
