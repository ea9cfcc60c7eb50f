"""The scheduler and its timetable."""
