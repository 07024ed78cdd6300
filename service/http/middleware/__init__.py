"""What every request passes: one module per entry of the table in `service/app.py`."""
