/* Runs the test of a rule: rules NUMBER */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>

static int (*const rules[])(void) = {
    rule_1_numbers_fit_an_int,
    rule_2_the_highest_level_works,
    rule_3_one_nic_opened_twice,
    rule_4_a_vi_without_a_tag,
    rule_5_the_target_makes_no_call,
    rule_6_last_word_is_visible_last,
    rule_7_fields_of_posted_receives,
    rule_8_receives_before_connecting,
    rule_9_no_listener,
    rule_10_equal_peer_addresses,
    rule_11_no_write_beyond_the_address,
    rule_12_ordered_teardown,
    rule_13_unordered_teardown,
    rule_14_exit_without_teardown,
    rule_15_names_of_devices,
    rule_16_registration_is_cheap,
    rule_17_waits_sleep,
    rule_18_names_of_hosts,
    rule_19_memory_that_cannot_be_locked,
    rule_20_fork_after_opening,
};

#define RULES (sizeof rules / sizeof rules[0])

int main(int argc, char **argv)
{
    unsigned long number = argc == 2 ? strtoul(argv[1], NULL, 10) : 0;

    if (number < 1 || number > RULES) {
        fprintf(stderr, "usage: %s 1..%u\n", argv[0], (unsigned)RULES);
        return 2;
    }
    return rules[number - 1]();
}
