/* Shows the rule of a number: rules NUMBER */
#include "old.h"

#include <stdio.h>
#include <stdlib.h>

static int (*const rules[])(void) = {
    rule_1_numbers_fit_an_int,
    rule_2_the_highest_level_works,
    rule_3_one_nic_opened_twice,
    rule_4_a_vi_without_a_tag,
    rule_5_the_target_makes_no_call,
    rule_6_the_last_word_is_last,
    rule_7_fields_of_posted_receives,
    rule_8_receives_before_connecting,
    rule_9_nobody_waits,
    rule_10_equal_peer_addresses,
    rule_11_no_more_than_the_address,
    rule_12_ending_in_order,
    rule_13_ending_in_disorder,
    rule_14_exit_without_teardown,
    rule_15_names_of_devices,
    rule_16_registration_is_cheap,
    rule_17_waits_sleep,
    rule_18_names_of_hosts,
    rule_19_memory_that_cannot_be_locked,
    rule_20_fork_after_opening,
};

#define RULES (sizeof rules / sizeof rules[0])

int main(int count, char **words)
{
    unsigned long number = count == 2 ? strtoul(words[1], NULL, 10) : 0;

    if (number < 1 || number > RULES) {
        fprintf(stderr, "usage: %s 1..%u\n", words[0], (unsigned)RULES);
        return 2;
    }
    return rules[number - 1]();
}
