/* The first process of every pod: holds its namespaces and reaps what is left behind in them. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
    (void)signal;
    _exit(0);
}

static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, 0, WNOHANG) > 0) {
    }
}

int main(void) {
    struct sigaction reaping = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
    signal(SIGINT, end);
    signal(SIGTERM, end);
    sigaction(SIGCHLD, &reaping, 0);
    for (;;) {
        pause();
    }
}
