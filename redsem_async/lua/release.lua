-- release: give permits back, then serve the queue.
--
-- ARGV     owner    hub of the ids; it gets a push message when it is not the caller's hub
--          hold     for how long requests of the caller's process hold their permits lately, in ms
--                   times permits; '' mostly
--          own      '' where no request of the caller's hub waits, '1' where one may; or the oldest
--                   of them, 'number:lease_ms:limit:permits,...', as many as numbers at most, which
--                   may come before requests of other hubs (zset)
--          numbers  from here on: of the ids; with rates, 'number:us+...' tells how much more its
--                   permit cost than its request said, or less
-- RETURNS  {tag, next_ms, waiting, own_grants, held...}, where nobody asks about the queue -1 and 0
--          in place of next_ms and waiting; held being 1, or 0 when the id held nothing
--
-- uses: holders (allow_writes_at_maxmemory append exact grant_of load_state parse_ids purge
--       remove_holders), hubs (raise_mark), order (own_requests), serve (own_grants reply_head
--       serve), tell (publish_to)

local owner, hold, own = ARGV[5], tonumber(ARGV[6]), ARGV[7]
local NUMBERS = 8

load_state()
local ids, highest = parse_ids(owner, NUMBERS)
local held, leaving, numbers, seen = {}, {}, {}, {}
for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
  -- Of an id that occurs twice in one call, the second is not held.
  held[i] = expiry and tonumber(expiry) > now and not seen[ids[i]] and 1 or 0
  if expiry and not seen[ids[i]] then leaving[#leaving + 1] = ids[i] end
  if held[i] == 1 then numbers[#numbers + 1] = string.match(ARGV[NUMBERS + i - 1], '^%d+') end
  seen[ids[i]] = true
end
local settled = {}  -- of permits that cost something else
for i, id in ipairs(rated and ids or {}) do
  local more = held[i] == 1 and string.match(ARGV[NUMBERS + i - 1], ':(.*)$')
  local grant = more and grant_of(id)
  if grant then settled[#settled + 1] = { more, grant.token } end
end
allow_writes_at_maxmemory()
if #leaving > 0 then remove_holders(leaving) end
for _, each in ipairs(settled) do rated.settle(unpack(each)) end
if #settled > 0 then rated.save(0) end
if owner == hub then
  raise_mark(highest)
elseif #numbers > 0 then
  publish_to(owner, 'revoked', table.concat(numbers, ','))
end
if hold and state.mode then
  if usual_hold >= 0 then hold = (usual_hold + hold) / 2 end
  call('HSET', meta, 'hold', exact(math.ceil(hold)))
end
if state.waiting > 0 then
  purge()
  serve(own_requests(own))
end
local reply = { tag, -1, 0, slotted and slotted.tell({}) or {} }
if own ~= '' or state.more or #own_grants > 0 then reply = reply_head() end
return append(reply, held)
