/* A test container's only program. What it does is its first argument:
 *   serve        says so, and ends with 0 on SIGTERM (also without an argument)
 *   stubborn     as serve, but ignores SIGTERM
 *   exit CODE    ends at once
 *   print TEXT CODE
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void end(int signal) { (void)signal; _exit(0); }

int main(int count, char **arguments)
{
    const char *what = count > 1 ? arguments[1] : "serve";
    if (!strcmp(what, "exit") && count > 2)
        return atoi(arguments[2]);
    if (!strcmp(what, "print") && count > 3) {
        puts(arguments[2]);
        return atoi(arguments[3]);
    }
    signal(SIGTERM, !strcmp(what, "stubborn") ? SIG_IGN : end);
    puts("serving");
    fflush(stdout);
    for (;;)
        pause();
}
