"""Who signs in to the console: keys in `test_sign_in`, people in `test_people`.

`test_provider` has what their provider answers, `test_operator` who runs the service.
"""
