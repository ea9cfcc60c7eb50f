"""The scheduler, the only code that imports rq-scheduler: `timetable` is data, `clock` rings it."""
