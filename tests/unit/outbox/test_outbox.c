/* The outbox on a real PostgreSQL (SPEC O1–O6). */
#include <string.h>

#include "base/log.h"
#include "rig.h"

int main(int argc, char **argv)
{
    log_set_level(LOG_LEVEL_ERROR + 1); /* dead letters are what some of them are about */
    rig_start();
    int failed = argc > 1 && strcmp(argv[1], "turns") == 0 ? run_turn_tests() : run_claim_tests();
    if (argc == 1) /* else these alone, to repeat a run of the model */
        failed += run_turn_tests() + run_engine_tests() + run_fault_tests() + run_operator_tests() +
                  run_model_tests();
    rig_stop();
    return failed ? 1 : 0;
}
