-- acquire (zset): grant what fits, in the order in which requests arrive.
--
-- The ancestor is the counting semaphore of Redis in Action, 6.3, which keeps owners in a sorted
-- set. This is one script, so it never adds an owner that it has to remove again. It ranks holders
-- by expiry on one clock, where the book ranks them by each caller's clock.
--
-- KEYS     as in the head
-- ARGV     lease_ms  lease of these requests
--          declared  the caller's own limit, which a set limit overrides
--          waits     how many requests of this hub wait beside these, and its highest limit:
--                    'requests:limit', or 0 for none
--          hinted    permits of a hint that the hub received; the script passes on what these
--                    requests do not take
--          hub_info  facts about the caller's hub, '' when sent before
--          no_push   '1' when no push message reaches the hub, '2' when nobody counts it
--          right     'ms:limit' to ask for the right to reuse leases, '' not to
--          requests  from here on: 'number', or 'number:permits:waits' (waits 0 or 1)
-- RETURNS  {tag, next_ms, waiting, own_grants, set_limit, hold, room, answer...}, set_limit being -1
--          when no limit is set, hold the usual hold in ms times permits, -1 when it is not known or
--          none waits, room how many permits are left, and an answer a token (granted),
--          {token, ms left} (holds a permit already), -1 (gone: its number was used before, and it
--          does not hold) or -2 (no room); where the right was asked for, 1 or 0 comes after these
-- USES     parse_waits, load_state, unknown_hub, unknown_hub_error, mark, parse_requests,
--          record_hub, detect_lost_holders, purge, current_grant, grace, now, next_token, last,
--          write_grants, announce, serve, recall_rights, answer_right, others_wait, append,
--          reply_with_room, limit_for, slotted, LAYOUT
--          sets used, freed

local lease, declared, hinted = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[8])
local waits, highest = parse_waits(ARGV[7])
local hub_info, no_push = ARGV[9], ARGV[10]
local right = ARGV[11]
local REQUESTS = 12

load_state()
if unknown_hub and hub_info == '' then return unknown_hub_error() end
local refusal
if slotted then declared, refusal = slotted.compare(declared) end
if refusal then return refusal end
declared = tonumber(declared)
local old_mark = mark
local requests = parse_requests(REQUESTS)
-- Redis refuses this write at maxmemory, and it is the first: the acquire fails with nothing
-- written.
call('HSET', meta, 'mode', mode, 'layout', LAYOUT, hub, mark)
record_hub(hub_info, no_push, lease)
if slotted then slotted.note_list(lease) end
detect_lost_holders(lease)
purge()

local effective_limit = limit_for(declared)
local answers, grants, granted, served = {}, {}, 0, waits == 0
for i, request in ipairs(requests) do
  local number, value, permits, stays = unpack(request)
  local id = hub .. '.' .. number
  if value <= old_mark then
    answers[i] = current_grant(id) or -1
  elseif grace <= now and used + permits <= effective_limit then
    used = used + permits
    granted = granted + permits
    grants[#grants + 1] = { id, next_token(), lease, permits }
    answers[i] = last
  else
    answers[i], served = -2, false
    if stays then waits = waits + 1 end
  end
end
write_grants(grants)
local passes_hint = freed == 0
freed = math.max(0, freed + hinted - granted)
if mark > old_mark then announce(waits, math.max(highest, declared), lease) end
serve(false, true, passes_hint)
if not served then recall_rights() end
if right ~= '' then answers[#answers + 1] = answer_right(right, others_wait()) end
return append(reply_with_room(effective_limit, served), answers)
