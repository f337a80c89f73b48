"""H6 on NATS: there the owners of a process have their questions of one connection, and must not wait for each other."""
from test_hydration_sources import (ask, asker, module_refdata_db, owners,  # noqa: F401 pylint: disable=unused-import
                                    test_h6_an_owner_that_hangs_holds_up_no_other)  # noqa: F401
