"""An exporter of the test's tenant."""

from tests.support.evidence.exporting import exporter

__all__ = ["exporter"]
