from tests.kit.one_decoder import one_decoder

__all__ = ["one_decoder"]
