/* Kafka buses of this module: all of them connect as the file's `kafka:` says. */
#ifndef FRESHET_REFDATA_KAFKA_H
#define FRESHET_REFDATA_KAFKA_H

#include "bus/bus_kafka.h"
#include "modules/refdata/refdata.h"

/* On the home loop. Workers, target and topics are the caller's; brokers and all the rest are filled in. CONFIG when
 * something cannot be understood. */
enum status refdata_kafka_open(const struct refdata *refdata, const struct bus_kafka_config *own,
                               struct bus **bus, struct error *error) MUST_CHECK;

#endif
