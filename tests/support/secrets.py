"""The master key of this test process: whoever makes a tenant seals the name of its chain."""

from app.lib.crypto.sealing import MasterKeys

MASTER_KEYS_SETTING = MasterKeys.generate()
MASTER_KEYS = MasterKeys.parse(MASTER_KEYS_SETTING)
