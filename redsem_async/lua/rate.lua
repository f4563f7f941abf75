-- rate: the gate of the rates: who is next, and who looks when. buckets.lua says when a request goes.
--
-- meta     rate_told  '<late> <id> <ms> <hub>': the next request, when the rates let it go, which its hub
--                     has been told, and another hub, which looks STAGGER later in case that one stands
--                     still. <late> is a hub that did not look in time and has not called since, or '-':
--                     for its requests the other hub looks without that delay

local STAGGER = 1000  -- ms
local SAMPLE = 20     -- requests that stand for all that wait
local head      -- the next request, where only the rates hold it up
local refused   -- one that the rates hold up, and that does not wait
local deputy, stagger  -- the other hub that looks, and by how many ms later

-- *request* is the next one, and goes *at* that time; nil for none.
function rated.next_is(request, at)
  head = at and request
  if at then head.lets_at = at end
end
function rated.refuse(request, blocked_by)
  if head or blocked_by == 'rate' then refused = request end
end
-- A permit with this *token* cost *more* than its request said, or less, in us of each rate.
function rated.settle(more, token)
  local i = 0
  for us in string.gmatch(more, '-?%d+') do
    i = i + 1
    take_from(i, tonumber(us), token)
  end
end
-- Saves the rates with the counter, for at least *need* ms.
function rated.save(need)
  local text, last = rated.left()
  save_counter(math.max(need, (last - now_us) / 1000), 'rates', text)
end

-- The hub that did not look in time, as *known* shows, and has not called since.
local function late_hub(known)
  local late, owner, at = string.match(known, '^(%S+) (%x+)%S* (%d+)')
  if owner and now >= at + STAGGER then late = owner end
  return late ~= hub and late or '-'
end
-- The other hub that looks, '' for none: the caller's is known to be awake.
local function find_deputy()
  local found = ''
  for _, from in ipairs({ 0, -SAMPLE }) do
    for _, text in ipairs(call('ZRANGE', queue, from, from + SAMPLE - 1)) do
      local owner = string.match(text, '^%x+')
      local is_other = owner ~= head.owner and (found == '' or owner == hub)
      if is_other and (owner == hub or not hub_state(owner).no_push) then found = owner end
    end
  end
  return found
end
-- Tells the hub of the next request when it goes, once: that hub alone looks then, and another one
-- later. Returns false where no message reached the hub, which counts as dead.
function rated.tell()
  if not head then
    call('HDEL', meta, 'rate_told')  -- what hubs are told now ends their looks
    return true
  end
  local known = call('HGET', meta, 'rate_told') or ''
  local late, told = late_hub(known), ' ' .. head.id .. ' ' .. exact(head.lets_at) .. ' '
  local is_told = string.find(known, told, 1, true)
  deputy = is_told and string.match(known, '%x*$') or ''
  if deputy == '' then deputy = find_deputy() end
  stagger = (late == head.owner or hub_state(head.owner).no_push) and 0 or STAGGER
  if known == late .. told .. deputy then return true end
  note('rate_told', late .. told .. deputy)
  local left = head.lets_at - now
  if not is_told and head.owner ~= hub and not hub_state(head.owner).no_push
      and publish_to(head.owner, 'recheck', exact(left)) == 0 then
    mark_dead(head.owner)
    head = nil
    return false
  end
  if deputy ~= '' and deputy ~= hub then publish_to(deputy, 'recheck', exact(left + stagger)) end
  return true
end
-- When the caller's hub has to look, in ms; nil for never.
function rated.look_at()
  return head and (head.owner == hub and head.lets_at or deputy == hub and head.lets_at + stagger)
end
-- In how many ms the last of those that wait, or are refused, goes, by what the first of them cost; -1
-- where the rates hold nobody up.
function rated.backlog()
  if not head and not refused then return -1 end
  local sums, bursts, at = {}, {}, now_us
  local function add(costs, times)
    local i = 0
    for cost, burst in string.gmatch(costs, '(%d+)/(%d+)') do
      i = i + 1
      sums[i], bursts[i] = (sums[i] or 0) + cost * times, burst
    end
  end
  local texts = call('ZRANGE', queue, 0, SAMPLE - 1)
  for _, text in ipairs(texts) do add(parse_request(text).costs, state.waiting / #texts) end
  if refused then add(refused.costs, 1) end
  for i, sum in ipairs(sums) do at = math.max(at, (tats[i] or 0) + sum - bursts[i]) end
  return math.ceil((at - now_us) / 1000)
end
