"""A stand-in of a Prometheus that knows the run."""

from squelch.cluster.grafana.boards import Chosen
from squelch.cluster.grafana.prometheus import Prometheus, Series, Span
from squelch.kit.base.errors import UserError


class Asked(Prometheus):
    """A Prometheus that answers every expression with one series, and counts the questions."""

    def __init__(self, addresses: tuple[str, ...] = ("127.0.0.1:9464",)) -> None:
        self.url, self.addresses, self.expressions, self.error = "http://stand-in", addresses, [], ""
        self.scope = "first_turn"

    def over(self, expr: str, span: Span) -> list[Series]:
        self.expressions.append(expr)
        if self.error:
            raise UserError(self.error)
        times = (span.start, span.end)
        if expr.startswith("squelch_run_info"):
            return [Series({"instance": one}, times, (1.0, 1.0)) for one in self.addresses]
        return [Series({"scope": self.scope, "le": "+Inf"}, times, (0.25, 0.5))]

    def chosen(self, instance: str, span: Span) -> Chosen:
        return Chosen(instance, "20s")
