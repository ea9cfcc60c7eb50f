"""The master key of this test process, under which each tenant's chain name is sealed."""

from app.lib.crypto.sealing import MasterKeys

MASTER_KEYS_SETTING = MasterKeys.generate()
MASTER_KEYS = MasterKeys.parse(MASTER_KEYS_SETTING)
