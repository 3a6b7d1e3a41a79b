"""Office hours for the tools of Windlass agents."""

from .office_hours import OfficeHours

__all__ = ["OfficeHours"]
