"""The Ray shell of the filter passes lists through."""

from squelch.actors.config import FilterConfig
from squelch.actors.filter.service import FilterService
from squelch.actors.filter.windows import FilterWindow
from tests.actors.filter.summaries import summary


def service(config: FilterConfig) -> object:
    """The service's class without its Ray process."""
    return FilterService.__ray_metadata__.modified_class(config)


def test_the_shell_decides_as_the_window_does() -> None:
    config, groups = FilterConfig(rho=1.0), [summary([1, 0, 0, 1])]
    shell, window = service(config), FilterWindow(config)
    assert shell.admit(groups) == []
    window.admit(groups[0])
    state = shell.state()
    assert state == window.state()
    assert shell.close(3).decisions == window.close(3).decisions
    assert shell.metrics() == window.metrics()


def test_the_shell_takes_up_a_checkpoint() -> None:
    config, groups = FilterConfig(window="sliding"), [summary([1, 0, 0, 1])]
    first, second = service(config), service(config)
    assert [decision.decision for decision in first.admit(groups)] == ["kept"]
    second.restore(first.state())
    assert second.close(3).decisions == first.close(3).decisions
