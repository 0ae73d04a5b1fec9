// Starts Envoy with OSM's arguments and the runtime settings that a newer Envoy needs for OSM's configuration.
//
// OSM 1.2.4 was released with Envoy 1.22 and uses fields that have been deprecated since. Envoy refuses these
// unless told otherwise, and OSM has no setting for its runtime.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "/usr/local/bin/envoy-server"
#define SETTINGS                                                                                                       \
    "{layered_runtime: {layers: [{name: osm, static_layer: {envoy.features.enable_all_deprecated_features: true}}]}}"

int main(int count, char **words) {
    char *all[64] = {"envoy", "--config-yaml", SETTINGS};
    if (count > 60) {
        fprintf(stderr, "envoy: %d arguments are more than this wrapper passes on\n", count);
        return 64;
    }
    memcpy(all + 3, words + 1, count * sizeof *words); // with the null at the end
    execv(PROGRAM, all);
    perror(PROGRAM);
    return 127;
}
